"""`quintet sample`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet import rooms
from quintet.cli.common import (
    ASKING,
    Step,
    check_step,
    examples,
    group,
    parse,
)
from quintet.engine.errors import RunError
from quintet.files import marking_outputs
from quintet.suggest import command

INPUTS = tyro.conf.arg(metavar="[INPUT …]")


def sample(arguments: list[str]) -> None:
    """Draw samples. The run comes first because its family defines the flags."""
    if not arguments or arguments[0].startswith("-"):
        print(
            f"{examples('sample')}\n\n"
            "usage: quintet sample RUN [INPUT …] --out DIR [flags of the run's model]\n\n"
            f"{command('sample', 'RUN', '--help')} shows its flags."
        )
        if arguments and arguments[0] in ASKING:
            return
        raise RunError(f"name a run first: {command('sample', 'RUN', '--help')} shows its flags")
    from quintet.engine.runs.folder import at_step

    run = Path(arguments[0])
    family, trained = rooms.trained(run)
    module = family.sample
    kind = dataclasses.make_dataclass(
        "Sample",
        [
            ("inputs", Annotated[tyro.conf.Positional[tuple[Path, ...]], INPUTS], ()),
            ("out", Path, Path("out")),
            ("step", Step, None),
            ("flags", group(spelled(module.Flags), "Settings of the sampler."), module.Flags()),
        ],
    )
    kind.__doc__ = (
        f"{module.Flags.__doc__}\n\nArgs:\n    inputs: Input files or folders.\n"
        "    out: Output folder.\n"
        "    step: Checkpoint to use, or best; the default is the newest one."
    )
    shown = f"  {command('sample', run)} {module.EXAMPLE}"
    asked = parse(kind, gathered(arguments[1:]), f"sample {run}", shown)
    check_step(asked.step)
    trained = dataclasses.replace(trained, path=at_step(trained.path, asked.step))
    with marking_outputs():
        paths = module.sample(trained, asked.inputs, asked.out, asked.flags)
    for path in paths:
        print(path)


def spelled(flags: Any) -> Any:
    """Name the flag of a field `from_` `--from`: `from` is a Python keyword."""
    for field in dataclasses.fields(flags):
        if field.name.endswith("_"):
            name = tyro.conf.arg(name=field.name.rstrip("_"))
            flags.__annotations__[field.name] = Annotated[field.type, name]
    return flags


def gathered(arguments: list[str]) -> list[str]:
    """Merge `--text a --text b` into `--text a b`; tyro would silently use the last one only."""
    words: list[str] = []
    flags: dict[str, list[str]] = {}
    values = words
    for word in arguments:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = flags.setdefault(name, [])
            values += [value] if equals else []
        else:
            values.append(word)
    return words + [word for name, values in flags.items() for word in (name, *values)]

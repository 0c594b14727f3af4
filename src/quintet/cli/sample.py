"""`quintet sample`."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet import rooms
from quintet.cli.common import (
    ASKING,
    Step,
    check_step,
    examples,
    parse,
)
from quintet.engine.errors import RunError

INPUTS = tyro.conf.arg(metavar="[INPUT …]")


def sample(given: list[str]) -> None:
    """Each family has its own flags, so the run comes first."""
    if not given or given[0].startswith("-"):
        print(
            f"{examples('sample')}\n\n"
            "usage: quintet sample RUN [INPUT …] --out DIR [flags of the run's model]\n\n"
            "quintet sample RUN --help shows its flags."
        )
        if given and given[0] in ASKING:
            return
        raise RunError("name a run first: quintet sample RUN --help shows its flags")
    from quintet.engine.runs.folder import at_step

    run = Path(given[0])
    family, trained = rooms.trained(run)
    module = family.sample
    kind = dataclasses.make_dataclass(
        "Sample",
        [
            ("inputs", Annotated[tyro.conf.Positional[tuple[Path, ...]], INPUTS], ()),
            ("out", Path, Path("out")),
            ("step", Step, None),
            ("flags", Annotated[spelled(module.Flags), tyro.conf.arg(name="")], module.Flags()),
        ],
    )
    kind.__doc__ = (
        f"{module.Flags.__doc__}\n\nArgs:\n    inputs: Files or folders to work on.\n"
        "    out: Folder for what is made.\n"
        "    step: Checkpoint to use, or best; the default is the newest one.\n"
        "    flags: What to make."
    )
    shown = f"  quintet sample {shlex.quote(str(run))} {module.EXAMPLE}"
    asked = parse(kind, gathered(given[1:]), f"sample {run}", shown)
    check_step(asked.step)
    trained = dataclasses.replace(trained, path=at_step(run, asked.step))
    for path in module.sample(trained, asked.inputs, asked.out, asked.flags):
        print(path)


def spelled(flags: Any) -> Any:
    """The flag of a field `from_` is `--from`, which no field can be called."""
    for field in dataclasses.fields(flags):
        if field.name.endswith("_"):
            name = tyro.conf.arg(name=field.name.rstrip("_"))
            flags.__annotations__[field.name] = Annotated[field.type, name]
    return flags


def gathered(given: list[str]) -> list[str]:
    """`--text a --text b` as `--text a b`, of which otherwise the last would silently win."""
    words: list[str] = []
    flags: dict[str, list[str]] = {}
    values = words
    for word in given:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = flags.setdefault(name, [])
            values += [value] if equals else []
        else:
            values.append(word)
    return words + [word for name, found in flags.items() for word in (name, *found)]

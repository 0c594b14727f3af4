"""`quintet evaluate`, `quintet sample` and `quintet replay`: what a trained run is good for."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from quintet import rooms
from quintet.cli.words import (
    ASKING,
    each_field,
    examples,
    is_main,
    need_data,
    parse,
    recorded,
    table,
)
from quintet.engine.config import resolved
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Evaluate:
    """Measure the averaged weights on held-out data, or on a folder; a table and a line of JSON."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    data: tyro.conf.Positional[str | None] = None
    """Measure all of this folder instead of the run's held-out share."""
    step: int | None = None
    """Which checkpoint; without it the newest sound one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes the GPU where there is one."""
    batch_size: int | None = None
    """Samples at a time."""


def evaluate(given: list[str]) -> None:
    from quintet.engine.evaluate import of_run
    from quintet.engine.world import World, shut_down

    asked = parse(Evaluate, given, "evaluate")
    name, recipe = recorded(asked.run)
    if asked.data is None:
        need_data(recipe, asked.run, "name a folder to measure on")
    recipe = dataclasses.replace(
        without_limit(recipe) if asked.data else recipe,
        device=asked.device,
        compile="off",
        batch_size=asked.batch_size or recipe.batch_size,
        data=resolved(asked.data) or recipe.data,
    )
    task = rooms.build(name, recipe, asked.run)
    metrics = of_run(task, recipe, asked.run, World(recipe), asked.step, whole=bool(asked.data))
    if is_main():
        table(metrics)
        print(json.dumps(metrics))
    shut_down()


def without_limit(settings: Any) -> Any:
    """As many samples held out as there are."""
    return each_field(
        settings, lambda field, value: sys.maxsize if field.name == "valid_limit" else value
    )


EXAMPLES = {
    "image": "photo.jpg --out out",
    "mesh": '--text "a table with three legs" --count 8 --format obj --out meshes',
    "video": "clip.mp4 --out out",
    "music": 'songs --text "a slow minor melody on strings" --top 5 --out found',
    "speech": '--text "ba do ki" --voice me.wav --out spoken.wav',
}
"""What the help of a run begins with, by room."""


def sample(given: list[str]) -> None:
    """Each room has its own flags, so the run comes first."""
    if not given or given[0].startswith("-"):
        print(
            f"{examples('sample')}\n\n"
            "usage: quintet sample RUN [INPUT …] --out DIR [flags of the run's room]\n\n"
            "quintet sample RUN --help shows its flags."
        )
        if given and given[0] in ASKING:
            return
        raise RunError("name a run first: quintet sample RUN --help shows its flags")
    run = Path(given[0])
    name = room_of(run)
    room = importlib.import_module(f"quintet.{name}.sample")
    kind = dataclasses.make_dataclass(
        "Sample",
        [
            ("inputs", tyro.conf.Positional[tuple[Path, ...]], ()),
            ("out", Path, Path("out")),
            ("flags", Annotated[spelled(room.Flags), tyro.conf.arg(name="")], room.Flags()),
        ],
    )
    kind.__doc__ = (
        f"{room.Flags.__doc__}\n\nArgs:\n    inputs: Files or folders to work on.\n"
        "    out: Folder for what is made.\n    flags: What to make."
    )
    shown = f"  quintet sample {run} {EXAMPLES.get(name, '--out out')}"
    asked = parse(kind, gathered(given[1:]), f"sample {run}", shown)
    for path in room.sample(run, asked.inputs, asked.out, asked.flags):
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


def room_of(source: Path) -> str:
    """The room of a run or of an exported model."""
    from quintet.engine.folder import RunFolder

    about = RunFolder.open(source).about if source.is_dir() else {}
    if "model" in about:
        return rooms.model_class(about, source).label().partition("/")[0]
    return rooms.room_of(recorded(source)[0])


@dataclasses.dataclass(kw_only=True)
class Replay:
    """Take one step again from the checkpoint before it; show its losses and its samples."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    step: int
    """The step to take again: the one that brought the run to this number."""


def replay(given: list[str]) -> None:
    from quintet.engine.replay import replay as again

    asked = parse(Replay, given, "replay")
    name, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "so its steps can be taken again only there")
    found = again(
        lambda settings: rooms.build(name, settings, asked.run), recipe, asked.run, asked.step
    )
    table(found.losses)
    print(f"samples: {', '.join(found.samples)}")
    print(json.dumps({"step": asked.step, "losses": found.losses, "samples": found.ids}))

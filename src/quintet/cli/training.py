"""`quintet train` and `quintet resume`."""

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from quintet import rooms
from quintet.cli.words import (
    ASKING,
    each_field,
    examples,
    is_main,
    listing,
    need_data,
    parse,
    recorded,
    sentences,
)
from quintet.engine.config import Recipe, resolved
from quintet.engine.errors import RunError, Stopped

if TYPE_CHECKING:
    from quintet.engine.sinks import Sink


def train(given: list[str]) -> None:
    """Train a recipe."""
    if not given or given[0].startswith("-"):
        known = [cut(line, WIDTH) for line in listing().splitlines()]
        print(
            f"{examples('train')}\n\nusage: quintet train RECIPE [DATA] --run DIR [--steps N …]\n\n"
            "recipes:",
            *known,
            "\nquintet train RECIPE --help shows its settings.",
            sep="\n",
        )
        if not given or given[0] not in ASKING:
            raise RunError("name a recipe first, for example image/vqgan_tiny")
        return
    name, rest = given[0], spell_compile(given[1:])
    default = rooms.recipe_function(name)()
    if any(word in ASKING for word in rest):
        print(recipe_help(name, default))
        return
    rest = ["--help" if word == "--help-all" else word for word in rest]
    asked = parse(flags_of(name, default), rest, f"train {name}", recipe_examples(name, default))
    data = asked.data if asked.data is not None else asked.settings.data
    recipe = dataclasses.replace(with_whole_paths(asked.settings), data=resolved(data))
    launch(name, recipe, asked.run, "continue" if asked.go_on else "new")


OWN = {
    "data": "Folder of data; without it the built-in data is used.",
    "run": "Folder of the new run.",
    "continue": "Start the run, or go on with it if it is there.",
}
"""Flags of the command; the others are settings of the recipe."""


def flags_of(name: str, default: Recipe) -> Any:
    kind = dataclasses.make_dataclass(
        "Train",
        [
            ("data", tyro.conf.Positional[str | None], None),
            ("run", Path, run_of(name)),
            ("go_on", Annotated[bool, tyro.conf.arg(name="continue")], False),
            ("settings", Annotated[type(default), tyro.conf.arg(name="")], default),
        ],
    )
    kind.__doc__ = (
        f"{rooms.recipe_function(name).__doc__}\n\nArgs:\n"
        f"    data: {OWN['data']}\n    run: {OWN['run']}\n    go_on: {OWN['continue']}\n"
        "    settings: What the run is made of."
    )
    return kind


def run_of(name: str) -> Path:
    return Path("runs") / name.replace("/", "-")


# -- help that fits a screen ----------------------------------------------------------------------

COMMON = (
    *("steps", "batch_size", "accumulate", "seed", "device", "precision", "workers", "log_every"),
    *("evaluate_every", "save_every", "minutes", "init_from", "trackers"),
)
"""Of the settings that every recipe has, those that are explained here; others are only named."""
WIDTH = 98


def recipe_examples(name: str, default: Recipe) -> str:
    stages = "".join(f" --{stage} runs/a" for stage in default.stages)
    return "\n".join(
        [
            f"  quintet train {name}{stages} --run runs/b",
            f"  quintet train {name} FOLDER{stages} --run runs/c --steps 5000",
        ]
    )


def recipe_help(name: str, default: Recipe) -> str:
    """The settings that all recipes share, then the room's own; groups of settings on a line."""
    said = sentences(type(default))
    fields = [field.name for field in dataclasses.fields(default)]
    shared = {field.name for field in dataclasses.fields(Recipe)}
    groups = [f for f in fields if dataclasses.is_dataclass(getattr(default, f))]
    alone = [*COMMON, *(f for f in fields if f not in shared and f not in groups)]
    seldom = [flag(f) for f in fields if f in shared and f not in COMMON]
    place = f"{OWN['run'].rstrip('.')}; left out: {run_of(name)}."
    own = {"FOLDER": OWN["data"], "--run DIR": place, "--continue": OWN["continue"]}
    flags = {f"{flag(f)} {spelt(getattr(default, f))}": said[f] for f in alone}
    also = f"Also {' '.join(seldom)}"
    return "\n".join(
        [
            f"{recipe_examples(name, default)}\n",
            f"{rooms.recipe_function(name).__doc__}\n",
            "Flags, with what they are where they are left out:",
            *(row(first, text) for first, text in (own | flags).items()),
            textwrap.fill(also, WIDTH, subsequent_indent="     ", break_on_hyphens=False),
            "Groups of settings, as in --GROUP.NAME VALUE:",
            *(row(flag(g), group_line(said[g], getattr(default, g))) for g in groups),
            f"\nquintet train {name} --help-all explains every setting.",
        ]
    )


def flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def spelt(value: Any) -> str:
    """As it would be typed."""
    if isinstance(value, tuple):
        return " ".join(map(str, cast("tuple[object, ...]", value)))
    return "…" if value is None else str(value)


def row(first: str, text: str) -> str:
    """One line: the sentence, or what of it comes before further details."""
    begin = f"  {first:<27} "
    if len(begin + text) > WIDTH:
        text = re.split(r"; |\. ", text)[0].rstrip(".")
    return cut(begin + text, WIDTH)


def cut(line: str, width: int) -> str:
    """At a space, where it is longer."""
    return line if len(line) <= width else f"{line[: width - 1].rpartition(' ')[0]} …"


def group_line(sentence: str, settings: Any) -> str:
    names = ", ".join(field.name.replace("_", "-") for field in dataclasses.fields(settings))
    return f"{sentence.partition(';')[0].rstrip('.')}: {names}"


def with_whole_paths(settings: Any) -> Any:
    return each_field(
        settings, lambda field, value: resolved(value) if field.metadata.get("path") else value
    )


def spell_compile(given: list[str]) -> list[str]:
    """--compile and --no-compile, for the setting that is also 'auto'."""
    words: list[str] = []
    for index, word in enumerate(given):
        following = given[index + 1] if index + 1 < len(given) else ""
        if word == "--no-compile":
            words += ["--compile", "off"]
        elif word == "--compile" and following not in ("on", "off", "auto"):
            words += ["--compile", "on"]
        else:
            words.append(word)
    return words


def launch(name: str, recipe: Recipe, run: Path, mode: Any) -> None:
    step = train_run(name, recipe, run, mode)
    if is_main():
        show_end(run, step)


def train_run(
    name: str,
    recipe: Recipe,
    run: Path,
    mode: Any,
    *,
    more: "Sequence[Sink]" = (),
    progress: bool = True,
) -> int:
    """Train to the end and return the step reached; `more` is told what happens, too."""
    from quintet.engine.launch import start
    from quintet.engine.pretrained import initial_weights
    from quintet.engine.world import shut_down
    from quintet.report import ReportSink

    try:
        step = start(
            lambda settings: rooms.build(name, settings),
            recipe,
            run,
            name=name,
            mode=mode,
            sinks=lambda folder: [ReportSink(folder.path), *more],
            weights=initial_weights,
            progress=progress,
        )
    except Stopped:  # all processes stop together; after a failure the others may be gone,
        shut_down()  # and taking the group down could wait for them
        raise
    shut_down()
    return step


def show_end(run: Path, step: int) -> None:
    pictures = sorted((run / "exhibits").glob("*/*"))
    print(f"{run} is at step {step}.")
    if pictures:
        print(f"Look at {pictures[-1]}")
    print(f"The whole run on one page: {run / 'report.html'}")
    print(f"Next: quintet sample {run} --out out, quintet export {run} model")


@dataclasses.dataclass(kw_only=True)
class Resume:
    """Go on with a run, exactly where its last checkpoint stands."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    steps: int | None = None
    """New length of the run; the schedule keeps its recorded length."""
    schedule_steps: int | None = None
    """New length of the learning-rate schedule."""
    minutes: float | None = None
    """Stop cleanly after so many minutes."""
    batch_size: int | None = None
    """Samples per process and micro-batch; the global batch stays."""
    workers: int | None = None
    """Processes that load data."""
    shard: bool | None = None
    """Divide weights among the processes, or stop doing so."""
    log_every: int | None = None
    """Steps between reports."""
    save_every: int | None = None
    """Steps between checkpoints."""
    evaluate_every: int | None = None
    """Steps between evaluations."""


def resume(given: list[str]) -> None:
    asked = parse(Resume, given, "resume")
    name, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "go on with it there: trainer.train(resume=True)")
    changes = {k: v for k, v in vars(asked).items() if k != "run" and v is not None}
    if asked.minutes is None:
        changes["minutes"] = None
    changed = dataclasses.replace(recipe, **changes)
    check_length(asked)
    if asked.schedule_steps is not None:
        reschedule(asked.run, asked.schedule_steps)
    launch(name, changed, asked.run, "resume")


def check_length(asked: Resume) -> None:
    from quintet.engine.folder import RunFolder

    reached = max(RunFolder.open(asked.run).steps(), default=0)
    if asked.steps is not None and asked.steps < reached:
        raise RunError(f"{asked.run} is at step {reached} already; give --steps beyond it")


def reschedule(run: Path, steps: int) -> None:
    """Under the lock: a run that another process trains is left alone."""
    from quintet.engine.folder import RunFolder

    if not is_main():
        return
    folder = RunFolder.open(run)
    folder.lock()
    try:
        folder.about["settings"]["schedule_steps"] = steps
        folder.write_config(folder.about)
    finally:
        folder.unlock()

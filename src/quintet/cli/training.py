"""`quintet train` and `quintet resume`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet import rooms
from quintet.cli.words import examples, is_main, listing, need_data, parse, recorded, resolved
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError


def train(given: list[str]) -> None:
    """Train a recipe."""
    if not given or given[0].startswith("-"):
        print(
            "usage: quintet train RECIPE [DATA] --run DIR [--steps N …]\n\nrecipes:\n"
            f"{listing()}\n\n{examples('train')}\n\n"
            "quintet train RECIPE --help shows every setting."
        )
        if not given or given[0] not in ("-h", "--help"):
            raise RunError("name a recipe first, for example image/vqgan_tiny")
        return
    name, rest = given[0], spell_compile(given[1:])
    default = rooms.recipe_function(name)()
    kind = dataclasses.make_dataclass(
        "Train",
        [
            ("data", tyro.conf.Positional[str | None], None),
            ("run", Path, Path("runs") / name.replace("/", "-")),
            ("go_on", Annotated[bool, tyro.conf.arg(name="continue")], False),
            ("settings", Annotated[type(default), tyro.conf.arg(name="")], default),
        ],
    )
    kind.__doc__ = (
        f"{rooms.recipe_function(name).__doc__}\n\nArgs:\n"
        "    data: Folder of data; without it the built-in data is used.\n"
        "    run: Folder of the new run.\n"
        "    go_on: Start the run, or go on with it if it is there.\n"
        "    settings: What the run is made of."
    )
    asked = parse(kind, rest, f"train {name}")
    data = asked.data if asked.data is not None else asked.settings.data
    recipe = dataclasses.replace(with_whole_paths(asked.settings), data=resolved(data))
    launch(name, recipe, asked.run, "continue" if asked.go_on else "new")


def with_whole_paths(settings: Any) -> Any:
    """The same settings, at whatever depth, with the paths among them resolved."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = with_whole_paths(value)
        elif field.metadata.get("path"):
            changes[field.name] = resolved(value)
    return dataclasses.replace(settings, **changes)


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
            sinks=lambda folder: [ReportSink(folder.path)],
            weights=initial_weights,
        )
    finally:
        shut_down()
    if is_main():
        show_end(run, step)


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

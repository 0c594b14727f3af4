"""`quintet demo`: six small trainings, one after another, and a page that shows them."""

import dataclasses
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tyro

from quintet import __version__
from quintet.cli.demo_display import Display, StageSink
from quintet.cli.demo_stages import STAGES, Length, Stage, settings_of
from quintet.cli.training import train_run
from quintet.cli.words import parse, recorded
from quintet.engine.errors import RunError, Stopped

Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclasses.dataclass(kw_only=True)
class Demo:
    """Train all six small recipes on built-in data on the CPU, in about ten minutes, and show on
    one page what came of it. Stopped and started again, it goes on where it was."""

    run: Path = Path("runs/demo")
    """Folder of the demo; each training has a run folder in it."""
    quick: Flag = False
    """In about three minutes: everything is learned less well."""
    go_on: Annotated[Flag, tyro.conf.arg(name="continue")] = False
    """Go on with the demo that is there, or start it; it does so anyway."""
    steps: int | None = None
    """So many steps of each instead, to see whether everything is installed."""


def demo(given: list[str]) -> None:
    asked = parse(Demo, given, "demo")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise RunError("the demo is for one process; start it without torchrun")
    if asked.steps is not None and asked.steps < 1:
        raise RunError(f"--steps is {asked.steps}; give 1 or more")
    with stoppable(asked.run):
        length = agree_on_length(asked)
        with Display(STAGES, length) as display:
            for stage in STAGES:
                train_stage(stage, length, asked.run, display)
            display.say("Sampling, and writing the page.")
            page = write_gallery(asked.run, length)
    print_end(asked.run, page)


@contextmanager
def stoppable(run: Path) -> Generator[None, None, None]:
    """An interrupt outside of training, where the engine sees to it, is a sentence too."""

    def stop(number: int, _: Any) -> None:
        name, status = ("an interrupt", 130) if number == signal.SIGINT else ("SIGTERM", 143)
        raise Stopped(f"stopped by {name}", status)

    here = threading.current_thread() is threading.main_thread()  # no other may handle signals
    numbers = (signal.SIGINT, signal.SIGTERM) if here else ()
    old = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped as stopped:
        words = str(stopped).partition("; the state is saved")[0]
        again = f"Go on with: quintet demo --run {run}"
        raise Stopped(f"{words}; what was trained is kept. {again}", stopped.status) from None
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


# -- the folder -----------------------------------------------------------------------------------


def agree_on_length(asked: Demo) -> Length:
    """What is asked for, or what the demo that is there was started with."""
    from quintet.engine.checkpoint import write_json
    from quintet.engine.folder import read_json

    note = asked.run / "demo.json"
    wanted: Length | None = asked.steps or ("quick" if asked.quick else None)
    if not note.exists():
        check_empty(asked.run)
        length: Length = wanted or "full"
        asked.run.mkdir(parents=True, exist_ok=True)
        write_json(note, {"quintet": __version__, "length": length})
        return length
    kept = read_json(note).get("length")
    if kept not in ("full", "quick") and not (type(kept) is int and kept >= 1):
        raise RunError(f"{note}: length is {kept!r}, which no demo has; choose another --run")
    if wanted not in (None, kept):
        raise RunError(
            f"{asked.run} holds a demo of another length ({named(kept)}); go on with it without "
            f"--quick and --steps, or choose another --run for this one"
        )
    print(f"Going on with the demo in {asked.run} ({named(kept)}).", flush=True)
    return kept


def check_empty(run: Path) -> None:
    if not run.exists():
        return
    if not run.is_dir() or any(p.name != ".demo.json.writing" for p in run.iterdir()):
        raise RunError(f"{run} exists and is not a demo's folder; choose another --run")


def named(length: Length) -> str:
    return f"{length} steps each" if isinstance(length, int) else length


# -- the trainings --------------------------------------------------------------------------------


def train_stage(stage: Stage, length: Length, demo: Path, display: Display) -> None:
    from quintet.engine.folder import RunFolder

    run = demo / stage.folder
    there = (run / "config.json").exists()
    # What is recorded counts: the demo may have been moved, or started by an earlier version.
    settings = recorded(run)[1] if there else settings_of(stage, length, demo)
    reached = max(RunFolder(run).steps(), default=0)
    if reached >= settings.steps:
        display.found(stage, settings.steps, in_words(stage, demo))
        return
    display.start(stage, settings.steps, reached)
    sinks = [StageSink(display, stage)]
    try:
        train_run(stage.recipe, settings, run, "continue", more=sinks, progress=False)
    except RunError as error:
        raise RunError(f"{stage.recipe}: {error}") from None
    display.end(stage, in_words(stage, demo))


def in_words(stage: Stage, demo: Path) -> str:
    """The last held-out numbers of a training, against their baselines."""
    from quintet.engine.folder import RunFolder, read_lines

    folder = RunFolder(demo / stage.folder)
    records = read_lines(folder.metrics) if folder.metrics.exists() else []
    measured = [r for r in records if any(name.startswith("val/") for name in r)]
    if not measured:
        return "not measured"
    values = {n.removeprefix("val/"): v for n, v in measured[-1].items() if n.startswith("val/")}
    try:
        return stage.words(values, recorded(folder.path)[1])
    except (KeyError, TypeError, ValueError):  # a number that was not finite, or not measured
        return "measured, but not all of it"


# -- the end --------------------------------------------------------------------------------------


def write_gallery(demo: Path, length: Length) -> Path:
    from quintet.cli.demo_page import closing, opening, sampled
    from quintet.report import write_page

    made = sampled(demo)
    numbers = {stage.folder: in_words(stage, demo) for stage in STAGES}
    return write_page(
        [demo / stage.folder for stage in STAGES],
        demo / "index.html",
        title="Quintet: six trainers at work",
        opening=opening(demo, length, numbers, made),
        closing=closing(demo),
    )


def print_end(demo: Path, page: Path) -> None:
    width = max(len(stage.title) for stage in STAGES)
    for stage in STAGES:
        print(f"{stage.title:<{width}}  {in_words(stage, demo)}")
    print(f"\nAll of it on one page: {page}")
    print(f'Next: quintet sample {demo}/writer --text "a flat cone" --out meshes')
    print("      quintet train image/vqgan_tiny PHOTOS --run runs/mine")

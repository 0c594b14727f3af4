"""`quintet demo`: train all tiny recipes in turn and write a page with the results."""

import dataclasses
import os
import signal
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tyro

from quintet import __version__
from quintet.cli.common import parse, recorded
from quintet.cli.demo.display import Display, StageSink
from quintet.cli.demo.stages import Length, all_stages, fitting_settings, steps_of
from quintet.cli.train import train_run
from quintet.engine.errors import RunError, Stopped
from quintet.files import PARTIAL, write_json
from quintet.shared.demo import Stage
from quintet.suggest import command

Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclasses.dataclass(kw_only=True)
class Demo:
    """Train every tiny recipe on built-in data on the CPU, in about sixteen minutes, and write
    one page with the results. An interrupted demo resumes."""

    run: Path = Path("runs/demo")
    """Folder of the demo; each stage has a run folder in it."""
    quick: Flag = False
    """Shorter training, about four minutes, with worse results."""
    resume: Flag = False
    """Resume the demo in the folder, or start it; this is the default."""
    steps: int | None = None
    """Steps per stage instead, to test the installation."""


def demo(arguments: list[str]) -> None:
    options = parse(Demo, arguments, "demo")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise RunError("the demo runs in one process; start it without torchrun")
    if options.steps is not None and options.steps < 1:
        raise RunError(f"--steps is {options.steps}; must be 1 or more")
    with report_interrupts(options.run):
        length, stages = resolve_length(options), all_stages()
        with Display(stages, length) as display:
            for stage in stages:
                train_stage(stage, length, options.run, display)
            display.say("Sampling and writing the page.")
            metrics = {
                stage.folder: metrics_sentence(stage, options.run, length) for stage in stages
            }
            page = write_gallery(stages, options.run, length, metrics)
    print_summary(stages, options.run, page, metrics)


@contextmanager
def report_interrupts(run: Path) -> Generator[None, None, None]:
    """Turn interrupts outside of training, where the engine handles them, into one sentence."""

    def stop(number: int, _: Any) -> None:
        name, status = ("an interrupt", 130) if number == signal.SIGINT else ("SIGTERM", 143)
        raise Stopped(f"stopped by {name}", status)

    # Only the main thread may handle signals.
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped as stopped:
        reason = str(stopped).partition("; the state is saved")[0]
        remedy = f"Resume with: {command('demo', '--run', run)}"
        raise Stopped(f"{reason}; progress is saved. {remedy}", stopped.status) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# -- folder -----------------------------------------------------------------------------------


def resolve_length(options: Demo) -> Length:
    """The requested length, or that of the demo in the folder."""
    from quintet.engine.runs.folder import read_json

    record = options.run / "demo.json"
    requested: Length | None = options.steps or ("quick" if options.quick else None)
    if not record.exists():
        check_empty(options.run)
        length = requested or "full"
        options.run.mkdir(parents=True, exist_ok=True)
        write_json(record, {"quintet": __version__, "length": length})
        return length
    length = read_json(record).get("length")
    if length not in ("full", "quick") and not (type(length) is int and length >= 1):
        raise RunError(f"{record}: invalid length {length!r}; choose another --run")
    if requested not in (None, length):
        raise RunError(
            f"{options.run} holds a demo of another length ({describe_length(length)}); "
            "resume it without --quick and --steps, or choose another --run"
        )
    print(f"Resuming the demo in {options.run} ({describe_length(length)}).", flush=True)
    return length


def check_empty(run: Path) -> None:
    if not run.exists():
        return
    if not run.is_dir() or any(not p.match(PARTIAL) for p in run.iterdir()):
        raise RunError(f"{run} exists and is not a demo folder; choose another --run")


def describe_length(length: Length) -> str:
    return f"{length} steps per stage" if isinstance(length, int) else length


# -- training --------------------------------------------------------------------------------


def train_stage(stage: Stage, length: Length, demo: Path, display: Display) -> None:
    from quintet.engine.runs.folder import RunFolder

    run = demo / stage.folder
    exists = (run / "config.json").exists()
    # Recorded settings win: the demo may have been moved, or started by an earlier version.
    reduced = None
    if exists:
        settings = recorded(run)[1]
    else:
        settings, reduced = fitting_settings(stage, length, demo)
    step = max(RunFolder(run).steps(), default=0)
    if step >= settings.steps:
        display.skip(stage, settings.steps, metrics_sentence(stage, demo, length))
        return
    display.start(stage, settings.steps, step)
    if reduced:
        display.say(f"{stage.title}: {reduced}")
    sinks = [StageSink(display, stage)]
    try:
        train_run(stage.recipe, settings, run, "resume_or_new", more=sinks, progress=False)
    except RunError as error:
        raise RunError(f"{stage.recipe}: {error}") from None
    display.end(stage, metrics_sentence(stage, demo, length))


def metrics_sentence(stage: Stage, demo: Path, length: Length) -> str:
    """The last validation metrics of a stage and their baselines."""
    from quintet.engine.runs.folder import RunFolder, read_lines

    folder = RunFolder(demo / stage.folder)
    records = read_lines(folder.metrics) if folder.metrics.exists() else []
    evaluations = [r for r in records if any(name.startswith("val/") for name in r)]
    if not evaluations:
        return "not evaluated"
    values = {n.removeprefix("val/"): v for n, v in evaluations[-1].items() if n.startswith("val/")}
    try:
        recipe = recorded(folder.path)[1]
        planned = steps_of(stage, length)
        fewer = f"; {recipe.steps} of {planned} steps" if recipe.steps < planned else ""
        return stage.summarise(values, recipe) + fewer
    except (KeyError, TypeError, ValueError):  # not finite, or missing
        return "some metrics are missing or not finite"


# -- results --------------------------------------------------------------------------------------


def write_gallery(
    stages: Sequence[Stage], demo: Path, length: Length, metrics: Mapping[str, str]
) -> Path:
    from quintet.cli.demo.page import closing, draw_samples, opening
    from quintet.report import write_page

    return write_page(
        [demo / stage.folder for stage in stages],
        demo / "index.html",
        title="Quintet demo",
        opening=opening(stages, length, metrics, draw_samples(stages, demo)),
        closing=closing(stages, demo),
    )


def print_summary(
    stages: Sequence[Stage], demo: Path, page: Path, metrics: Mapping[str, str]
) -> None:
    from quintet.cli.demo.page import sample_command

    width = max(len(stage.title) for stage in stages)
    for stage in stages:
        print(f"{stage.title:<{width}}  {metrics[stage.folder]}")
    print(f"\nResults: {page}")
    commands = (sample_command(stage, demo) for stage in stages)
    print(f"Next: {next(filter(None, commands), command('list'))}")
    print(f"      {command('train', 'image/vqgan_tiny', 'PHOTOS', '--run', 'runs/mine')}")

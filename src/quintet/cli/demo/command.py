"""`quintet demo`: one page with samples of the ready models and a run that trains meanwhile."""

import dataclasses
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tyro

from quintet import __version__
from quintet.cli.common import parse
from quintet.engine.errors import RunError, Stopped
from quintet.files import PARTIAL, write_json
from quintet.suggest import command

Flag = tyro.conf.FlagCreatePairsOff[bool]
FEWEST = 12
"""Steps of the shortest run that can be killed and resumed before its end."""


@dataclasses.dataclass(kw_only=True)
class Demo:
    """Sample the ready models, then train a small model, kill it and resume it, on one page: about
    five minutes on two CPU cores. An interrupted demo resumes."""

    run: Path | None = None
    """Folder of the demo; default: runs/demo, with --full runs/demo-full."""
    full: Flag = False
    """Train every tiny recipe from nothing instead, in about sixteen minutes."""
    steps: int | None = None
    """Steps per training run instead, to test the installation."""


def demo(arguments: list[str]) -> None:
    options = parse(Demo, arguments, "demo")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise RunError("the demo runs in one process; start it without torchrun")
    fewest = 1 if options.full else FEWEST
    if options.steps is not None and options.steps < fewest:
        raise RunError(f"--steps is {options.steps}; must be {fewest} or more")
    folder = options.run or Path("runs/demo-full" if options.full else "runs/demo")
    from quintet.cli.demo.full import full_demo
    from quintet.cli.demo.short import short_demo

    with report_interrupts(folder):
        full, steps = resolve_length(options, folder)
        (full_demo if full else short_demo)(folder, steps)


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


def resolve_length(options: Demo, run: Path) -> tuple[bool, int | None]:
    """Whether the demo in the folder, or the requested one, is a full one, and its steps."""
    from quintet.engine.runs.folder import read_json

    record = run / "demo.json"
    requested = (bool(options.full), options.steps)
    if not record.exists():
        check_empty(run)
        run.mkdir(parents=True, exist_ok=True)
        write_json(record, {"quintet": __version__, "full": requested[0], "steps": requested[1]})
        return requested
    about = read_json(record)
    full, steps = about.get("full"), about.get("steps")
    if type(full) is not bool or not (steps is None or (type(steps) is int and steps >= 1)):
        raise RunError(f"{record} lacks `full` or `steps`; choose another --run")
    if requested not in ((False, None), (full, None), (full, steps)):
        raise RunError(
            f"{run} holds another demo ({describe(full, steps)}); resume it without --full and "
            "--steps, or choose another --run"
        )
    print(f"Resuming the demo in {run} ({describe(full, steps)}).", flush=True)
    return full, steps


def check_empty(run: Path) -> None:
    if not run.exists():
        return
    if not run.is_dir() or any(not p.match(PARTIAL) for p in run.iterdir()):
        raise RunError(f"{run} exists and is not a demo folder; choose another --run")


def describe(full: bool, steps: int | None) -> str:
    length = "full" if full else "short"
    return length if steps is None else f"{length}, {steps} steps per run"

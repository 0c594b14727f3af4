"""`quintet demo`: one page with samples of the ready models and a run that trains meanwhile."""

import dataclasses
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tyro

from quintet import __version__, rooms
from quintet.cli.common import parse, recorded
from quintet.cli.demo.display import Display, StageSink, clock
from quintet.cli.demo.gallery import Shown
from quintet.cli.demo.page import Page, next_steps, sample_command
from quintet.cli.demo.stages import all_stages, demos, fitting_settings, live
from quintet.cli.train import train_run
from quintet.engine.errors import RunError, Stopped
from quintet.files import PARTIAL, marking_outputs, write_json
from quintet.shared.demo import Figure, Sample, Stage
from quintet.suggest import command

Flag = tyro.conf.FlagCreatePairsOff[bool]
FEWEST = 12
"""Steps of the shortest run that can be killed and resumed before its end."""
MULTIPLE = 40
"""Steps of the live stage are a multiple: evaluations and checkpoints divide them."""


@dataclasses.dataclass(kw_only=True)
class Demo:
    """Sample the ready models, then train one before your eyes, kill it and resume it: about five
    minutes on two CPU cores, and one page. An interrupted demo resumes."""

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
    with report_interrupts(folder):
        full, steps = resolve_length(options, folder)
        (full_demo if full else short_demo)(folder, steps)

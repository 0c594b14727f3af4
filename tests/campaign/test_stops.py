"""Every way a run can stop, as docs/resume.md has it: what is kept, and the exit status."""

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from campaign import faults, mishaps, subjects
from campaign.children import Program
from campaign.numbers import NAN, Fault, inject
from campaign.trial import Trial
from quintet.engine.runs import requests

PAGE = Path(__file__).parents[2] / "docs" / "resume.md"
QUICK = ("--evaluate-every", 0, "--save-every", 2, "--log-every", 1)


def rows() -> dict[str, tuple[str, int]]:
    """What is kept, and the exit status, by the way to stop."""
    table = re.search(r"\| a run ends by .*?\n\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert table
    cells = [re.split(r"(?<!\\)\|", line)[1:4] for line in table[0].splitlines()[2:] if line]
    return {way.strip(): (kept.strip(), int(status.split()[0])) for way, kept, status in cells}


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr(subjects, "FOLDER", tmp_path)
    return Trial("stops")


def signalled(trial: Trial, *numbers: int) -> Program:
    """Sent while a step takes long, so that a second signal comes before the state is saved."""
    program = trial.start(slow_steps, *QUICK, "--steps", 10)
    trial.reach(program, 3)
    time.sleep(0.4)  # the fourth step has begun
    for number in numbers:
        program.signal(number)
        time.sleep(0.15)
    return program


def requested(trial: Trial) -> Program:
    program = trial.start(slow_steps, *QUICK, "--steps", 10)
    trial.reach(program, 3)
    requests.ask(trial.path, "stop")
    return program


def slow_steps() -> None:
    from quintet.engine import loop

    take = loop.take_step

    def slow(run: Any) -> None:
        time.sleep(1.5 if run.step >= 3 else 0.05)
        take(run)

    loop.take_step = slow


def started(trial: Trial, *more: object, hook: Callable[[], Any] | None = None) -> Program:
    return trial.start(hook, *QUICK, "--steps", 5, *more)


def on_bad_pictures(trial: Trial) -> Program:
    folder = mishaps.pictures(trial.place / "data")
    for path in sorted(folder.iterdir())[::2]:
        path.write_bytes(b"no picture")
    limits = ("--steps", 40, "--save-every", 1, "--max-damaged", 0.3)
    return mishaps.on_pictures(trial, folder, *QUICK, *limits)


def failing_evaluation(trial: Trial) -> Program:
    folder = mishaps.pictures(trial.place / "data")
    return mishaps.on_pictures(trial, folder, *QUICK, hook=mishaps.spoil_held_out)


def changed_data(trial: Trial) -> Program:
    folder = mishaps.pictures(trial.place / "data")
    mishaps.ended(mishaps.on_pictures(trial, folder, *QUICK))
    for path in sorted(folder.iterdir())[:4]:
        path.unlink()
    return mishaps.resume(trial, "--steps", 6)


def stuck(trial: Trial) -> Program:
    hook = partial(sleeping_data, str(trial.path / "metrics.jsonl"))
    return started(trial, "--steps", 40, "--workers", 1, "--data-timeout", 2, hook=hook)


def sleeping_data(metrics: str) -> None:
    """Workers are forked, so that they have it as well."""
    from quintet.image.data import BuiltinImages

    multiprocessing.current_process()._config["daemon"] = False  # it has workers of its own
    keyed = BuiltinImages.keyed

    def slow(self: Any, index: int, key: Any) -> Any:
        lines = Path(metrics).read_text().count("\n") if Path(metrics).exists() else 0
        if key is not None and lines >= 3:
            time.sleep(60)
        return keyed(self, index, key)

    BuiltinImages.keyed = slow


def defective() -> None:
    from quintet.engine import loop

    take = loop.take_step

    def broken(run: Any) -> None:
        if run.step == 3:
            raise AssertionError("a defect")
        take(run)

    loop.take_step = broken


def most_skipped(trial: Trial) -> Program:
    """Every other update is skipped, and one more."""
    return started(trial, "--save-every", 1, hook=skip_most)


def skip_most() -> None:
    for step in (0, 2, 3, 4):
        inject(Fault("loss", NAN, "vae", step))


def exploding(trial: Trial) -> Program:
    return started(trial, "--max-skipped", 2, hook=skip_late)


def skip_late() -> None:
    for step in (3, 4):
        inject(Fault("loss", NAN, "vae", step))


def full_disk(trial: Trial) -> Program:
    hook = partial(faults.failing_writes, str(trial.path / "checkpoints"), 12, 28)
    return started(trial, "--save-every", 1, hook=hook)


WAYS: dict[str, Callable[[Trial], Program]] = {
    "its last step": started,
    "`--minutes`": lambda trial: started(trial, "--minutes", 1e-9),
    "`--stop-when-flat`": lambda trial: started(
        trial,
        "--steps",
        40,
        "--stop-when-flat",
        1,
        "--evaluate-every",
        1,
        "--optim.learning-rate",
        1e-9,
    ),
    "**Save and stop** of [quintet watch](watch.md)": requested,
    "Ctrl-C": lambda trial: signalled(trial, signal.SIGINT),
    "Ctrl-C twice": lambda trial: signalled(trial, signal.SIGINT, signal.SIGINT),
    "SIGTERM": lambda trial: signalled(trial, signal.SIGTERM),
    "SIGHUP (terminal or ssh gone)": lambda trial: signalled(trial, signal.SIGHUP),
    "SIGKILL, a crash, a power cut": lambda trial: signalled(trial, signal.SIGKILL),
    "a closed pipe (`\\| head -1`)": lambda trial: started(
        trial, hook=partial(mishaps.close_the_pipe, 1)
    ),
    "an evaluation that fails": failing_evaluation,
    "a full disk": full_disk,
    "updates that are not finite, `max_skipped` in a row": exploding,
    "updates of which most were skipped": most_skipped,
    "unreadable data beyond `max_damaged`": on_bad_pictures,
    "a worker that is stuck, after `data_timeout`": stuck,
    "changed training data on resume": changed_data,
    "an invalid setting, a missing folder": lambda trial: started(trial, "--batch-size", 0),
    "an error in the program (a traceback)": lambda trial: started(trial, hook=defective),
}


def test_the_page_has_every_way_that_is_tried() -> None:
    assert list(rows()) == list(WAYS)


# Of the signals one by default: engine/machine/test_signals.py sends all.
SIGNALS = ("SIGTERM", "SIGHUP (terminal or ssh gone)")


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.slow if w in SIGNALS else ()) for w in WAYS]
)
def test_a_run_stops_as_the_page_says(way: str, trial: Trial) -> None:
    kept, status = rows()[way]
    program = WAYS[way](trial)
    (actual,) = program.wait(60)
    said = program.said()
    assert actual == (-signal.SIGKILL if status == 137 else status), said[-600:]
    if kept.startswith("nothing"):
        assert not trial.path.exists()
        return
    assert ("Traceback" in said) == (status == 1), said[-600:]
    assert trial.kept > 0, said[-600:]
    if kept.startswith("everything"):
        assert trial.kept == trial.taken
    elif kept.startswith("the last checkpoint"):
        assert trial.kept < trial.taken
    else:
        assert trial.kept == 5
    assert os.listdir(trial.path / "checkpoints")

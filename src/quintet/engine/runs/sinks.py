"""Sinks: destinations of reports, events and exhibits."""

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder


class Sink(Protocol):
    def report(self, record: Mapping[str, Any]) -> None:
        """Metrics, with their `step`."""

    def event(self, step: int, message: str) -> None:
        """A message for the user."""

    def exhibits(self, step: int, files: Sequence[Path]) -> None:
        """Files for the user to inspect."""

    def close(self) -> None:
        """Called at the end of the run."""


class Journal(Sink):
    """metrics.jsonl and events.jsonl; always active."""

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def report(self, record: Mapping[str, Any]) -> None:
        self.folder.append(self.folder.metrics, record)

    def event(self, step: int, message: str) -> None:
        self.folder.append(self.folder.events, {"step": step, "message": message})


class Callback(Sink):
    """A user function, called with each report."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]):
        self.function = function

    def report(self, record: Mapping[str, Any]) -> None:
        self.function(dict(record))


class TensorBoard(Sink):
    def __init__(self, folder: RunFolder):
        from torch.utils.tensorboard import SummaryWriter

        done = folder.steps()  # points of steps that will be repeated are dropped
        self.writer = SummaryWriter(
            str(folder.path / "tensorboard"), purge_step=done[-1] + 1 if done else None
        )

    def report(self, record: Mapping[str, Any]) -> None:
        for name, value in numbers(record).items():
            self.writer.add_scalar(name, value, record["step"])

    def event(self, step: int, message: str) -> None:
        self.writer.add_text("events", message, step)

    def close(self) -> None:
        self.writer.close()


class Tracker(Sink):
    """W&B, or trackio, which has the same API."""

    def __init__(self, name: str, folder: RunFolder):
        self.module = importlib.import_module(name)
        facts: dict[str, Any] = {"name": folder.path.name, "config": folder.about}
        if name == "wandb":  # files in the run folder; a resumed run stays one run
            facts |= {"dir": str(folder.path), "id": folder.id, "resume": "allow"}
        self.module.init(project="quintet", **facts)

    def report(self, record: Mapping[str, Any]) -> None:
        self.module.log(numbers(record), step=int(record["step"]))

    def close(self) -> None:
        self.module.finish()


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in record.items() if isinstance(v, (int, float)) and k != "step"}


def trackers(names: Sequence[str], folder: RunFolder) -> list[Sink]:
    """TensorBoard is used if installed; other trackers must be installed."""
    sinks: list[Sink] = []
    for name in names:
        try:
            sinks.append(TensorBoard(folder) if name == "tensorboard" else Tracker(name, folder))
        except ImportError as error:
            if name != "tensorboard":
                raise RunError(
                    f"tracker '{name}' is not installed ({error}); pip install 'quintet[{name}]'"
                ) from None
    return sinks


class Progress(Sink):
    """A progress bar on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, title: str, steps: int, start: Callable[[], int]):
        from rich.console import Console

        self.title, self.steps, self.start = title, steps, start
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar: Any = None
        self.began = time.monotonic()
        self.first: int | None = None
        self.printed = 0.0
        if self.console.is_terminal:
            self._open_bar()

    def _open_bar(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            console=self.console,
        )
        self.line = self.bar.add_task(
            self.title, total=self.steps, shown="", completed=self.start()
        )
        self.bar.start()

    def report(self, record: Mapping[str, Any]) -> None:
        shown = brief(record)
        step = int(record["step"])
        if self.bar:
            self.bar.update(self.line, completed=step, shown=shown)
            return
        if self.first is None:
            self.first, self.began = step, time.monotonic()
        now = time.monotonic()
        if now - self.printed > 10 or step == self.steps or "val/" in " ".join(record):
            self.printed = now
            line = f"step {step}/{self.steps}  {self._left(step, now)}{shown}"
            self.console.print(line, markup=False)

    def _left(self, step: int, now: float) -> str:
        done = step - (self.first or 0)
        if not done:
            return ""
        seconds = int((now - self.began) / done * (self.steps - step))
        return f"{seconds // 60}:{seconds % 60:02d} left  "

    def event(self, step: int, message: str) -> None:
        self.console.print(f"step {step}: {message}", markup=False)

    def exhibits(self, step: int, files: Sequence[Path]) -> None:
        *others, last = files
        more = f" and {len(others)} more files" if others else ""
        self.console.print(f"step {step}: wrote {last}{more}", markup=False)

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
        sys.stderr.flush()


def brief(record: Mapping[str, Any]) -> str:
    """The main metrics, short enough to stand beside a progress bar."""
    columns = [
        f"{name.removeprefix('val/')} {value:.4g}"
        for name, value in record.items()
        if isinstance(value, float) and (name.endswith("/loss") or name.startswith("val/"))
    ]
    if "samples_per_second" in record:
        columns.append(f"{record['samples_per_second']:.4g}/s")
        columns.append(f"waiting {record['waiting']:.0%}")
    return "  ".join(columns[:8])

"""Sinks: destinations of reports, events and exhibits."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

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


class Progress(Sink):
    """A progress bar on a terminal; elsewhere one line per report: `log_every` is the only rule."""

    def __init__(self, title: str, steps: int, start: int):
        from rich.console import Console

        self.steps = steps
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar: Any = None
        self.began = time.monotonic()
        self.first: int | None = None
        if self.console.is_terminal:
            self._open_bar(title, start)

    def _open_bar(self, title: str, start: int) -> None:
        from rich import progress

        self.bar = progress.Progress(
            progress.TextColumn("[bold]{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[shown]}", markup=False),
            console=self.console,
        )
        self.line = self.bar.add_task(title, total=self.steps, shown="", completed=start)
        self.bar.start()

    def report(self, record: Mapping[str, Any]) -> None:
        shown = brief(record)
        step = int(record["step"])
        if self.bar:
            self.bar.update(self.line, completed=step, shown=shown)
            return
        if self.first is None:
            self.first, self.began = step, time.monotonic()
        line = f"step {step}/{self.steps}  {self._left(step)}{shown}"
        self.console.print(line, markup=False)

    def _left(self, step: int) -> str:
        done = step - (self.first or 0)
        if not done:
            return ""
        seconds = int((time.monotonic() - self.began) / done * (self.steps - step))
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

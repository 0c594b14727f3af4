"""Progress display of the demo: one table row per stage on a terminal, else log lines."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.shared.demo import Stage

if TYPE_CHECKING:
    from rich.table import Table

PRINT_INTERVAL = 15
"""Seconds between lines where stderr is not a terminal."""


class Row:
    """Progress of one stage."""

    def __init__(self, stage: Stage, steps: int | None):
        self.stage, self.steps = stage, steps or stage.steps
        self.seconds = 3 if steps else stage.seconds
        self.state, self.detail = "waiting", ""
        self.step = self.first_step = 0
        self.started = self.ended = 0.0

    @property
    def fraction(self) -> float:
        """Fraction done; the last tenth is evaluation and exhibits."""
        return 1.0 if self.ended else 0.9 * self.step / self.steps

    def seconds_left(self, speed: float) -> float:
        return self.seconds * (1 - self.fraction) * speed


class Display:
    """Live display for the duration of its context, updated by the demo and its sinks."""

    def __init__(self, stages: Sequence[Stage], steps: int | None):
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.rows = {stage.folder: Row(stage, steps) for stage in stages}
        self.started = self.printed = time.monotonic()
        self.seconds_skipped = 0.0
        """Planned seconds already done by earlier calls."""
        self.status = ""
        self.live: Any = None

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            from rich.live import Live

            self.live = Live(get_renderable=self.table, console=self.console, refresh_per_second=2)
            self.live.start()
            self.console.show_cursor(True)  # a second ctrl-C may end the process at any time
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    # -- updates ---------------------------------------------------------------------------

    def skip(self, stage: Stage, steps: int, summary: str) -> None:
        """Mark a stage that an earlier call has finished."""
        self.seconds_skipped += self.rows[stage.folder].seconds
        self.rows[stage.folder].steps = steps
        self._finish(stage, "already done", summary)

    def start(self, stage: Stage, steps: int, step: int) -> None:
        row = self.rows[stage.folder]
        row.steps, row.step, row.first_step, row.started = steps, step, step, time.monotonic()
        row.state = "preparing"
        self.seconds_skipped += row.seconds * row.fraction
        position = f"{list(self.rows).index(stage.folder) + 1} of {len(self.rows)}"
        self.say(f"{stage.row.title} ({position}): {stage.recipe}, {steps} steps")

    def report(self, stage: Stage, record: Mapping[str, Any]) -> None:
        if "samples_per_second" not in record:  # an evaluation
            return
        row = self.rows[stage.folder]
        row.step = int(record["step"])
        name = next(name for name in record if "/" in name)  # the first loss
        row.detail = f"{name.rpartition('/')[2]} {record[name]:.3g}"
        row.state = "training" if row.step < row.steps else "evaluating"
        if time.monotonic() - self.printed > PRINT_INTERVAL:
            self.say(f"  step {row.step}/{row.steps}, {row.detail}, {self.time_left()}")

    def end(self, stage: Stage, summary: str) -> None:
        self._finish(stage, "done", summary)

    def note(self, stage: Stage, message: str) -> None:
        """Print a warning above the table."""
        self.console.print(f"{stage.row.title}: {message}", markup=False)

    def say(self, line: str) -> None:
        """Set the status line of the table, or print a line."""
        self.status, self.printed = line, time.monotonic()
        if not self.live:
            self.console.print(line, markup=False)

    def _finish(self, stage: Stage, state: str, summary: str) -> None:
        row = self.rows[stage.folder]
        row.state, row.step, row.ended = state, row.steps, time.monotonic()
        row.detail = summary.partition(";")[0]
        self.say(f"{stage.row.title}: {state}; {summary}")

    # -- rendering --------------------------------------------------------------------------

    def time_left(self) -> str:
        """Remaining time: the planned seconds, scaled by the speed of this machine so far."""
        rows = self.rows.values()
        seconds_done = sum(row.seconds * row.fraction for row in rows) - self.seconds_skipped
        speed = (time.monotonic() - self.started) / seconds_done if seconds_done > 5 else 1.0
        return f"{clock(sum(row.seconds_left(speed) for row in rows))} left in total"

    def table(self) -> "Table":
        from rich.table import Table

        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(4):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # the remaining width
        for row in self.rows.values():
            style = {"waiting": "dim", "training": "bold", "evaluating": "bold"}.get(row.state, "")
            cells = [row.stage.row.title, row.state, f"{row.step}/{row.steps}", self._time(row)]
            table.add_row(*cells, row.detail, style=style)
        elapsed = clock(time.monotonic() - self.started)
        finished = all(row.ended for row in self.rows.values())
        last = self.status if finished else self.time_left()
        table.add_row("", "", "", elapsed, last, style="dim")
        return table

    @staticmethod
    def _time(row: Row) -> str:
        if row.ended:
            return clock(row.ended - row.started) if row.started else ""
        steps_taken = row.step - row.first_step
        if not steps_taken or row.step == row.steps:
            return ""
        return (
            f"{clock((time.monotonic() - row.started) / steps_taken * (row.steps - row.step))} left"
        )


class StageSink:
    """Sink that forwards the reports of one stage to the display."""

    def __init__(self, display: Display, stage: Stage):
        self.display, self.stage = display, stage

    def report(self, record: Mapping[str, Any]) -> None:
        self.display.report(self.stage, record)

    def event(self, step: int, message: str) -> None:
        if message.startswith(("health", "skipped")):
            self.display.note(self.stage, f"step {step}: {message}")

    def exhibits(self, step: int, files: Sequence[Path]) -> None:
        pass

    def close(self) -> None:
        pass


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

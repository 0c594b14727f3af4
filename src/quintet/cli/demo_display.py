"""One progress display for the whole demo: six lines on a terminal, else a line now and then."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.cli.demo_stages import Length, Stage, seconds_of, steps_of

if TYPE_CHECKING:
    from rich.table import Table

QUIET = 15
"""Seconds between lines where there is no terminal."""


class Row:
    """What is known of one training."""

    def __init__(self, stage: Stage, length: Length):
        self.stage, self.steps = stage, steps_of(stage, length)
        self.seconds = seconds_of(stage, length)
        self.state, self.shown = "waiting", ""
        self.step = self.first = 0
        self.began = self.ended = 0.0

    @property
    def done(self) -> float:
        """A share; the last tenth is measuring and showing."""
        return 1.0 if self.ended else 0.9 * self.step / self.steps

    def left(self, speed: float) -> float:
        return self.seconds * (1 - self.done) * speed


class Display:
    """Shown as long as its context lasts; told of what happens by the demo and its sinks."""

    def __init__(self, stages: Sequence[Stage], length: Length):
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.rows = {stage.folder: Row(stage, length) for stage in stages}
        self.began = self.printed = time.monotonic()
        self.before = 0.0
        """Seconds of the plan that earlier calls have done."""
        self.said = ""
        self.live: Any = None

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            from rich.live import Live

            self.live = Live(get_renderable=self.table, console=self.console, refresh_per_second=2)
            self.live.start()
            self.console.show_cursor(True)  # it may be left at any instant, by a second ctrl-C
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    # -- what happens ---------------------------------------------------------------------------

    def found(self, stage: Stage, steps: int, words: str) -> None:
        """A training that an earlier call has finished."""
        self.before += self.rows[stage.folder].seconds
        self.rows[stage.folder].steps = steps
        self._finish(stage, "was done", words)

    def start(self, stage: Stage, steps: int, step: int) -> None:
        row = self.rows[stage.folder]
        row.steps, row.step, row.first, row.began = steps, step, step, time.monotonic()
        row.state = "preparing"
        self.before += row.seconds * row.done
        place = f"{list(self.rows).index(stage.folder) + 1} of {len(self.rows)}"
        self.say(f"{stage.title} ({place}): {stage.recipe}, {steps} steps")

    def report(self, stage: Stage, record: Mapping[str, Any]) -> None:
        if "samples_per_second" not in record:  # of an evaluation
            return
        row = self.rows[stage.folder]
        row.step = int(record["step"])
        name = next(name for name in record if "/" in name)  # its first loss comes first
        row.shown = f"{name.rpartition('/')[2]} {record[name]:.3g}"
        row.state = "training" if row.step < row.steps else "measuring"
        if time.monotonic() - self.printed > QUIET:
            self.say(f"  step {row.step}/{row.steps}, {row.shown}, {self.time_left()}")

    def end(self, stage: Stage, words: str) -> None:
        self._finish(stage, "done", words)

    def note(self, stage: Stage, message: str) -> None:
        """Something that a person should know, above the lines."""
        self.console.print(f"{stage.title}: {message}", markup=False)

    def say(self, line: str) -> None:
        """What is going on: below the lines, or a line of its own."""
        self.said, self.printed = line, time.monotonic()
        if not self.live:
            self.console.print(line, markup=False)

    def _finish(self, stage: Stage, state: str, words: str) -> None:
        row = self.rows[stage.folder]
        row.state, row.step, row.ended = state, row.steps, time.monotonic()
        row.shown = words.partition(";")[0]
        self.say(f"{stage.title}: {state}; {words}")

    # -- what is shown --------------------------------------------------------------------------

    def time_left(self) -> str:
        """By how long things have taken here against how long they took where it was measured."""
        rows = self.rows.values()
        worked = sum(row.seconds * row.done for row in rows) - self.before
        speed = (time.monotonic() - self.began) / worked if worked > 5 else 1.0
        return f"{clock(sum(row.left(speed) for row in rows))} left in all"

    def table(self) -> "Table":
        from rich.table import Table

        table = Table.grid(padding=(0, 2), expand=True)
        for _ in range(4):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # what is left of the width
        for row in self.rows.values():
            style = {"waiting": "dim", "training": "bold", "measuring": "bold"}.get(row.state, "")
            cells = [row.stage.title, row.state, f"{row.step}/{row.steps}", self._time(row)]
            table.add_row(*cells, row.shown, style=style)
        passed = clock(time.monotonic() - self.began)
        over = all(row.ended for row in self.rows.values())
        last = self.said if over else self.time_left()
        table.add_row("", "", "", passed, last, style="dim")
        return table

    @staticmethod
    def _time(row: Row) -> str:
        if row.ended:
            return clock(row.ended - row.began) if row.began else ""
        taken = row.step - row.first
        if not taken or row.step == row.steps:
            return ""
        return f"{clock((time.monotonic() - row.began) / taken * (row.steps - row.step))} left"


class StageSink:
    """Hands what the engine reports of one training to the display."""

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

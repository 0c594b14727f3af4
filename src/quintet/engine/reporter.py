"""Reporter: what a run tells its sinks, and the monitors that read along."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.engine.data.stream import Fixed, Stream
from quintet.engine.runs.sinks import Sink
from quintet.engine.task import Exhibit, Monitor, World


class Reporter:
    """The sinks are those of the main process; the other processes have none."""

    def __init__(self, sinks: Sequence[Sink], monitors: Sequence[Monitor]):
        self.sinks, self.monitors = list(sinks), list(monitors)
        self.damaged: dict[str, set[int]] = {"train": set(), "valid": set()}

    def event(self, step: int, message: str) -> None:
        for sink in self.sinks:
            sink.event(step, message)

    def record(self, record: Mapping[str, Any]) -> None:
        for sink in self.sinks:
            sink.report(record)
        for monitor in self.monitors:
            message = monitor(record)
            if message:
                self.event(record["step"], f"health: {message}")

    def name_damaged(self, step: int, split: str, loader: Stream | Fixed, world: World) -> None:
        """Each damaged sample once, whichever process met it."""
        notes = world.gather_objects([*loader.damaged])
        loader.damaged.clear()
        for note in (note for of_process in notes for note in of_process):
            if note.index not in self.damaged[split]:
                self.damaged[split].add(note.index)
                held_out = " (held out for validation)" if split == "valid" else ""
                self.event(step, f"skipped {note.name}: {note.reason}{held_out}")

    def exhibit(self, step: int, folder: Path, exhibits: Sequence[Exhibit]) -> None:
        if not exhibits:
            return
        folder = folder / f"step-{step:08d}"
        for path in (folder.parent, folder):
            path.mkdir(exist_ok=True)  # no parents: a run whose folder vanished must stop
        files = [file for exhibit in exhibits for file in exhibit.write(folder)]
        for sink in self.sinks:
            sink.exhibits(step, files)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

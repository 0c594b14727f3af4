"""Rollback from persistent non-finite updates to the last intact checkpoint, with a new data order.

A run with rollbacks is still a function of its configuration, its data and its seed. The streak
of skipped steps is part of every checkpoint, so a killed run fails again at the same step and
rolls back to the same checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from quintet.engine.errors import RunError
from quintet.engine.runs import checkpoint
from quintet.engine.runs.saver import Saver
from quintet.engine.skipped import Failure
from quintet.engine.when import When
from quintet.files import remove_folder

EPOCH_OFFSET = 1 << 32
"""Epochs between the data orders of two rollbacks: more than any run has."""


class Rollbacks:
    """The rollbacks of a run so far, and the failure that asks for the next one."""

    def __init__(self, saver: Saver):
        self.saver, self.limit = saver, saver.recipe.rollback
        self.past: list[dict[str, int]] = []
        """For each the steps `from` and `to`, and the `samples` consumed at `to`."""
        self.failure: Failure | None = None

    def fail(self, failure: Failure) -> None:
        """Ask for a rollback, or stop the run if none is left."""
        if len(self.past) < self.limit:
            self.failure = failure
            return
        raise RunError(
            f"{failure.cause}. The last intact checkpoint is at step {self._target(failure) or 0}; "
            "lower the learning rate, or inspect these samples"
        )

    def target(self, failure: Failure) -> int:
        """The checkpoint to restore, or an error."""
        step = self._target(failure)
        if step is None:
            raise RunError(
                f"{failure.cause}. There is no intact checkpoint to roll back to; "
                "lower --save-every"
            )
        return step

    def _target(self, failure: Failure) -> int | None:
        """The newest checkpoint before the failure with valid digests and finite values only.
        Regular checkpoints come before those saved on a signal, which an uninterrupted run would
        not have; a checkpoint that a rollback has already tried comes last. Searched on the main
        process, after pending writes."""

        def search() -> int | None:
            self.saver.writer.wait()
            folder, regular = self.saver.folder.checkpoints, When(self.saver.recipe.save_every)
            steps = [step for step in reversed(checkpoint.steps_in(folder)) if step <= failure.step]
            steps.sort(key=regular.due, reverse=True)
            tried: list[int] = []
            for step in steps:
                path = checkpoint.path_of(folder, step)
                if is_intact(path):
                    _, earlier = read_history(checkpoint.read_about(path), path)
                    if step not in {rollback["to"] for rollback in self.past[len(earlier) :]}:
                        return step
                    tried.append(step)
            return tried[-1] if tried else None

        return self.saver.world.on_main(search)

    def settle(self, failure: Failure, past: list[dict[str, int]]) -> str:
        """The last of `past` answers the failure: forget what came after; returns a sentence."""
        self.past, self.failure = past, None
        self.saver.best, self.saver.is_best = None, False
        last, step = past[-1]["from"], past[-1]["to"]
        if self.saver.world.is_main:
            self._discard_after(step)
        count = f"rollback {len(past)} of {self.limit}"
        return f"rolled back from step {last} to step {step} ({count}): {failure.cause}"

    def _discard_after(self, step: int) -> None:
        """Remove the reports and checkpoints that this run wrote after a step."""
        folder = self.saver.folder
        best = folder.best()
        if best is not None and best["step"] > step:
            (folder.path / "best.json").unlink()
        folder.forget_after(step)
        if folder.uploader:
            folder.uploader.forget_after(step)
        for later in reversed(folder.steps()):
            path = checkpoint.path_of(folder.checkpoints, later)
            if later > step and checkpoint.owner(path) == folder.id:
                remove_folder(path)


def read_history(
    about: Mapping[str, Any], where: Path
) -> tuple[dict[str, int], list[dict[str, int]]]:
    """In a checkpoint: skipped updates in a row of each part, and the rollbacks before it."""
    try:
        skips = {str(name): int(count) for name, count in about.get("skips", {}).items()}
        fields = ("from", "to", "samples")
        rollbacks = [
            {name: int(entry[name]) for name in fields} for entry in about.get("rollbacks", [])
        ]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunError(f"{where}: state.json has invalid skips or rollbacks") from error
    return skips, rollbacks


def position_shift(rollbacks: list[dict[str, int]], size: int) -> int:
    """Offset of the data position: each rollback starts an epoch that no other part of the run
    reaches, so order, crops and noise are new."""
    if not rollbacks:
        return 0
    return len(rollbacks) * EPOCH_OFFSET * size - rollbacks[-1]["samples"]


def is_intact(path: Path) -> bool:
    if checkpoint.examine(path) is not None:
        return False
    about = checkpoint.read_about(path)
    if any(read_history(about, path)[0].values()):
        return False
    files = (path / Path(name).name for name in about["files"])
    try:
        return not any(checkpoint.read_shapes(file)[1] for file in files)
    except (SafetensorError, OSError):
        return False

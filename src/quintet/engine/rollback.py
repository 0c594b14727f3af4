"""Going back: from numbers that stay bad to the last sound checkpoint, with the data in another
order from there on.

A run that goes back is still a function of its configuration, its data and its seed. The streak
of skipped steps is part of every checkpoint, so a run that is killed on the way fails at the same
step again and goes back to the same one.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from quintet.engine import checkpoint
from quintet.engine.folder import RunFolder
from quintet.engine.meters import Entry

APART = 1 << 32
"""Epochs between the orders of two rollbacks: more than any run has."""


class Failed(NamedTuple):
    """Updates that stayed bad: up to which step, and what is said about it."""

    step: int
    cause: str


def streaks(before: Mapping[str, int], entries: Iterable[Entry]) -> list[dict[str, int]]:
    """Skipped updates in a row of each part, after each of these marks on the device, which are
    the same on every process; the last is the present state."""
    marks = [entry for entry in entries if entry.name.endswith("/skipped")]
    found = [dict(before)]
    for entry in marks:
        part = entry.name.removesuffix("/skipped")
        if part in before:
            count = found[-1][part] + 1 if float(entry.value) > 0.5 else 0
            found.append({**found[-1], part: count})
    return found


def shift(rollbacks: list[dict[str, Any]], size: int) -> int:
    """What is added to the position in the data: each rollback begins an epoch that no other part
    of the run comes to, so that order, crops and noise are new."""
    if not rollbacks:
        return 0
    return len(rollbacks) * APART * size - rollbacks[-1]["samples"]


def target(folder: Path, failed: Failed, rollbacks: list[dict[str, Any]]) -> int | None:
    """The newest checkpoint from before the bad steps whose digests hold and whose numbers are
    all finite. One that the run went back to before has failed, and gives way to an older one."""
    sound = [
        step
        for step in reversed(checkpoint.steps_in(folder))
        if step <= failed.step and is_sound(checkpoint.path_of(folder, step))
    ]
    failed_before = {rollback["to"] for rollback in rollbacks}
    return next((step for step in sound if step not in failed_before), sound[-1] if sound else None)


def is_sound(path: Path) -> bool:
    if checkpoint.examine(path) is not None:
        return False
    about = checkpoint.read_about(path)
    if any(about.get("skips", {}).values()):
        return False
    return all(is_finite(path / Path(name).name) for name in about["files"])


def is_finite(file: Path) -> bool:
    """One tensor at a time, so that a large model needs little memory."""
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    return False
    except (SafetensorError, OSError):
        return False
    return True


def abandon(folder: RunFolder, step: int) -> None:
    """Remove what this run wrote after a step, reports and checkpoints: it goes another way."""
    best = folder.best()
    if best is not None and best["step"] > step:
        (folder.path / "best.json").unlink()
    folder.forget_after(step)
    for later in reversed(folder.steps()):
        path = checkpoint.path_of(folder.checkpoints, later)
        if later > step and owner(path) == folder.id:
            doomed = folder.checkpoints / f"{checkpoint.TEMPORARY}{later:08d}"
            os.rename(path, doomed)  # never half a checkpoint under a final name
            shutil.rmtree(doomed, ignore_errors=True)


def owner(path: Path) -> str | None:
    try:
        return checkpoint.read_about(path).get("run")
    except (OSError, ValueError, RecursionError):
        return None

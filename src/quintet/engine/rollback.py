"""Rollback from persistent non-finite updates to the last intact checkpoint, with a new data order.

A run with rollbacks is still a function of its configuration, its data and its seed. The streak
of skipped steps is part of every checkpoint, so a killed run fails again at the same step and
rolls back to the same checkpoint.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from quintet.engine import skipped
from quintet.engine.errors import RunError
from quintet.engine.meters import Entry, stacked
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from quintet.engine.when import When
from quintet.files import remove_folder

if TYPE_CHECKING:
    from quintet.engine.run import Run

EPOCH_OFFSET = 1 << 32
"""Epochs between the data orders of two rollbacks: more than any run has."""


class Failure(NamedTuple):
    """Too many non-finite updates in a row: the step that the last of them began at, and the
    message."""

    step: int
    cause: str


def guard(run: "Run", table: Mapping[int, Mapping[str, float]]) -> None:
    """Report skipped steps; past the limit roll back or stop. All processes read the same table."""
    run.updates = skipped.added(run.updates, skipped.in_table(run.parts, table))
    for step, row in table.items():
        for name in run.parts:
            if row.get(f"{name}/skipped", 0.0) < 0.5:
                run.skips[name] = 0 if f"{name}/skipped" in row else run.skips[name]
                continue
            run.skips[name] += 1
            terms = [k for k, v in row.items() if v - v != 0 and k.startswith(name)]
            cause = f"{', '.join(terms) or 'its loss or its data'}; samples {run.meters.ids[step]}"
            number = step + 1  # steps are counted from 1 wherever a user meets them
            run.say(f"skipped the update of '{name}' at step {number}: not finite: {cause}")
            if run.skips[name] >= run.recipe.max_skipped:
                reason = f"{run.skips[name]} updates of '{name}' in a row were not finite"
                return fail(run, Failure(step, f"{reason}, the last at step {number}: {cause}"))
    return None


def fail(run: "Run", failure: Failure) -> None:
    """Mark the run for rollback, or stop it if none is left."""
    if len(run.rollbacks) < run.recipe.rollback:
        run.failed = failure
        return
    step = last_intact_checkpoint(run, failure) or 0
    raise RunError(
        f"{failure.cause}. The last intact checkpoint is at step {step}; "
        "lower the learning rate, or inspect these samples"
    )


def roll_back(run: "Run", failure: Failure) -> None:
    """Restore the last intact checkpoint on all processes and continue with a new data order, so
    that the same batch does not recur."""
    step, elapsed = last_intact_checkpoint(run, failure), run.elapsed()
    if step is None:
        raise RunError(
            f"{failure.cause}. There is no intact checkpoint to roll back to; lower --save-every"
        )
    earlier, last = run.rollbacks, run.step
    run.restore(step)
    run.rollbacks = [*earlier, {"from": last, "to": step, "samples": run.stream.position}]
    run.stream.shift = position_shift(run.rollbacks, run.stream.samples.size)
    run.failed = None
    run.saver.forget_best()
    run.seconds, run.began = elapsed, time.monotonic()
    if run.world.is_main:
        discard_after(run.folder, step)
    count = f"rollback {len(run.rollbacks)} of {run.recipe.rollback}"
    run.say(f"rolled back from step {last} to step {step} ({count}): {failure.cause}")


def last_intact_checkpoint(run: "Run", failure: Failure) -> int | None:
    """Search on the main process, after pending writes; the same answer on every process."""

    def search() -> int | None:
        run.saver.wait()
        folder, save = run.folder.checkpoints, run.recipe.save
        return rollback_target(folder, failure, run.rollbacks, save)

    return run.world.on_main(search)


def skip_streaks(before: Mapping[str, int], entries: Iterable[Entry]) -> list[dict[str, int]]:
    """Consecutive skipped updates of each part after each of these device flags, which are equal
    on every process; the last item is the current state."""
    flags = [entry for entry in entries if entry.name.removesuffix("/skipped") in before]
    values = stacked(flags).tolist() if flags else []
    counts = [dict(before)]
    for entry, value in zip(flags, values):
        part = entry.name.removesuffix("/skipped")
        counts.append({**counts[-1], part: counts[-1][part] + 1 if value > 0.5 else 0})
    return counts


class History(NamedTuple):
    """Record of non-finite updates in a checkpoint."""

    skips: dict[str, int]
    """Consecutive skipped updates of each part, up to the checkpoint."""
    rollbacks: list[dict[str, int]]
    """For each rollback the steps `from` and `to`, and the `samples` consumed at `to`."""


def read_history(about: Mapping[str, Any], where: Path) -> History:
    try:
        skips = {str(name): int(count) for name, count in about.get("skips", {}).items()}
        fields = ("from", "to", "samples")
        rollbacks = [
            {name: int(entry[name]) for name in fields} for entry in about.get("rollbacks", [])
        ]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunError(f"{where}: state.json has invalid skips or rollbacks") from error
    return History(skips, rollbacks)


def position_shift(rollbacks: list[dict[str, int]], size: int) -> int:
    """Offset of the data position: each rollback starts an epoch that no other part of the run
    reaches, so order, crops and noise are new."""
    if not rollbacks:
        return 0
    return len(rollbacks) * EPOCH_OFFSET * size - rollbacks[-1]["samples"]


def rollback_target(
    folder: Path, failure: Failure, rollbacks: list[dict[str, int]], regular: When
) -> int | None:
    """The newest checkpoint before the failure with valid digests and finite values only. Regular
    checkpoints come before those saved on a signal, which an uninterrupted run would not have; a
    checkpoint that a rollback has already tried comes last."""
    steps = [step for step in reversed(checkpoint.steps_in(folder)) if step <= failure.step]
    steps.sort(key=regular.due, reverse=True)
    tried: list[int] = []
    for step in steps:
        path = checkpoint.path_of(folder, step)
        if is_intact(path):
            since = rollbacks[len(read_history(checkpoint.read_about(path), path).rollbacks) :]
            if step not in {rollback["to"] for rollback in since}:
                return step
            tried.append(step)
    return tried[-1] if tried else None


def is_intact(path: Path) -> bool:
    if checkpoint.examine(path) is not None:
        return False
    about = checkpoint.read_about(path)
    if any(read_history(about, path).skips.values()):
        return False
    return all(is_finite(path / Path(name).name) for name in about["files"])


def is_finite(file: Path) -> bool:
    """Checks one tensor at a time, to bound memory."""
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    return False
    except (SafetensorError, OSError):
        return False
    return True


def discard_after(folder: RunFolder, step: int) -> None:
    """Remove the reports and checkpoints that this run wrote after a step."""
    best = folder.best()
    if best is not None and best["step"] > step:
        (folder.path / "best.json").unlink()
    folder.forget_after(step)
    for later in reversed(folder.steps()):
        path = checkpoint.path_of(folder.checkpoints, later)
        if later > step and owner(path) == folder.id:
            remove_folder(path)


def owner(path: Path) -> str | None:
    try:
        return checkpoint.read_about(path).get("run")
    except (OSError, ValueError, RecursionError):
        return None

"""Going back: from numbers that stay bad to the last sound checkpoint, with the data in another
order from there on.

A run that goes back is still a function of its configuration, its data and its seed. The streak
of skipped steps is part of every checkpoint, so a run that is killed on the way fails at the same
step again and goes back to the same one.
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from quintet.engine import checkpoint
from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder
from quintet.engine.meters import Entry
from quintet.engine.when import When

if TYPE_CHECKING:
    from quintet.engine.run import Run

APART = 1 << 32
"""Epochs between the orders of two rollbacks: more than any run has."""


class Failed(NamedTuple):
    """Updates that stayed bad: up to which step, and what is said about it."""

    step: int
    cause: str


def guard(run: "Run", table: Mapping[int, Mapping[str, float]]) -> None:
    """Name skipped steps; past the limit go back or stop. Every process reads the same numbers."""
    for step, row in table.items():
        for name in run.parts:
            if row.get(f"{name}/skipped", 0.0) < 0.5:
                run.skips[name] = 0 if f"{name}/skipped" in row else run.skips[name]
                continue
            run.skips[name] += 1
            terms = [k for k, v in row.items() if v - v != 0 and k.startswith(name)]
            cause = f"{', '.join(terms) or 'its loss or its data'}; samples {run.meters.ids[step]}"
            run.say(f"skipped the update of '{name}' at step {step}: not finite: {cause}")
            if run.skips[name] >= run.recipe.max_skipped:
                bad = f"{run.skips[name]} updates of '{name}' in a row were not finite"
                return fail(run, Failed(step, f"{bad}, the last at step {step}: {cause}"))
    return None


def fail(run: "Run", failed: Failed) -> None:
    """Have the run go back, or stop it."""
    if len(run.rollbacks) < run.recipe.rollback:
        run.failed = failed
        return
    raise RunError(
        f"{failed.cause}. The last sound checkpoint is at step {last_sound(run, failed) or 0}; "
        "lower the rate, or look at these samples"
    )


def go_back(run: "Run", failed: Failed) -> None:
    """To the last sound checkpoint, all processes alike; on from there another order of the data
    holds, so that the same batch does not come again."""
    step, elapsed = last_sound(run, failed), run.elapsed()
    if step is None:
        raise RunError(f"{failed.cause}. There is no sound checkpoint to go back to; save earlier")
    before, left = run.rollbacks, run.step
    run.restore(step)
    run.rollbacks = [*before, {"from": left, "to": step, "samples": run.stream.position}]
    run.stream.shift = shift(run.rollbacks, run.stream.samples.size)
    run.failed, run.best, run.is_best = None, None, False
    run.seconds, run.began = elapsed, time.monotonic()
    if run.world.is_main:
        abandon(run.folder, step)
    count = f"rollback {len(run.rollbacks)} of {run.recipe.rollback}"
    run.say(f"went back from step {left} to step {step} ({count}): {failed.cause}")


def last_sound(run: "Run", failed: Failed) -> int | None:
    """What the main process finds, once what is being written is written."""
    step = problem = None
    if run.writer:
        try:
            run.writer.wait()
            step = target(run.folder.checkpoints, failed, run.rollbacks, run.recipe.save)
        except RunError as error:
            problem = str(error)
    step, problem = run.world.from_main((step, problem))
    if problem:
        raise RunError(problem)
    return step


def streaks(before: Mapping[str, int], entries: Iterable[Entry]) -> list[dict[str, int]]:
    """Skipped updates in a row of each part, after each of these marks on the device, which are
    the same on every process; the last is the present state."""
    marks = [entry for entry in entries if entry.name.removesuffix("/skipped") in before]
    values = torch.stack([entry.value for entry in marks]).tolist() if marks else []
    found = [dict(before)]
    for entry, value in zip(marks, values):
        part = entry.name.removesuffix("/skipped")
        found.append({**found[-1], part: found[-1][part] + 1 if value > 0.5 else 0})
    return found


class History(NamedTuple):
    """What a checkpoint says of bad numbers before it."""

    skips: dict[str, int]
    """Skipped updates in a row of each part, up to it."""
    rollbacks: list[dict[str, int]]
    """Each time that the run went back: `from` and `to` which step, and `samples` by then."""


def history(about: Mapping[str, Any], where: Path) -> History:
    try:
        skips = {str(name): int(count) for name, count in about.get("skips", {}).items()}
        kept = ("from", "to", "samples")
        rollbacks = [{name: int(one[name]) for name in kept} for one in about.get("rollbacks", [])]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunError(f"{where}: skips or rollbacks in state.json cannot be used") from error
    return History(skips, rollbacks)


def shift(rollbacks: list[dict[str, int]], size: int) -> int:
    """What is added to the position in the data: each rollback begins an epoch that no other part
    of the run comes to, so that order, crops and noise are new."""
    if not rollbacks:
        return 0
    return len(rollbacks) * APART * size - rollbacks[-1]["samples"]


def target(
    folder: Path, failed: Failed, rollbacks: list[dict[str, int]], regular: When
) -> int | None:
    """The newest checkpoint from before the bad steps whose digests hold and whose numbers are
    all finite. One that the run went back to in vain gives way to an older one, and one that was
    saved out of turn, for a signal, to a regular one: an undisturbed run would not have it."""
    steps = [step for step in reversed(checkpoint.steps_in(folder)) if step <= failed.step]
    steps.sort(key=regular.due, reverse=True)
    tried: list[int] = []
    for step in steps:
        path = checkpoint.path_of(folder, step)
        if is_sound(path):
            since = rollbacks[len(history(checkpoint.read_about(path), path).rollbacks) :]
            if step not in {rollback["to"] for rollback in since}:
                return step
            tried.append(step)
    return tried[-1] if tried else None


def is_sound(path: Path) -> bool:
    if checkpoint.examine(path) is not None:
        return False
    about = checkpoint.read_about(path)
    if any(history(about, path).skips.values()):
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

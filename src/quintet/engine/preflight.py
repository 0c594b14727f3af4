"""What a run says and refuses before its first step, or its first one after a resume."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from quintet.engine.config import Recipe
from quintet.engine.data import record
from quintet.engine.data.stream import Fixed, Stream
from quintet.engine.errors import RunError
from quintet.engine.machine import hardware
from quintet.engine.machine.world import World
from quintet.engine.part import Parts


def greeting(parts: Parts, stream: Stream, fixed: Fixed | None, world: World, batch: int) -> str:
    """Where a run trains, what, and on how much data."""
    counts = ", ".join(
        f"{name} {sum(p.numel() for p in part.parameters.values()) / 1e6:.2f} M"
        for name, part in parts.items()
    )
    count = fixed.samples.size if fixed else 0
    held_out = f"{count} held out for validation" if count else "none for validation"
    return (
        f"{world.size} process(es) on {world.device.type}, {world.precision}; "
        f"global batch {batch} from {stream.samples.size} samples, {held_out}; parameters: {counts}"
    )


def changed_rates(
    parts: Parts, recipe: Recipe, about: Mapping[str, Any], step: int, path: Path
) -> Iterator[str]:
    """A sentence for each learning rate that differs from that of the checkpoint, and for another
    schedule; a run that would not learn is refused."""
    before = about.get("learning_rates")
    before = before if isinstance(before, Mapping) else {}
    for name, rate in parts.learning_rates().items():
        if before.get(name, rate) != rate:
            yield f"learning rate of '{name}' changed from {before[name]} to {rate} at step {step}"
    if step >= recipe.steps:
        return
    earlier, length = about.get("settings", {}).get("schedule_steps"), recipe.schedule_steps
    rates = {name: part.learning_rate_at(step) for name, part in parts.items()}
    if not any(rates.values()):
        raise RunError(
            f"{path} is at step {step}, past the end of its learning-rate schedule of {length} "
            f"steps: the rate would be 0. Stretch the schedule with --schedule-steps {recipe.steps}"
        )
    if earlier not in (None, length):
        listed = ", ".join(f"'{name}' {rate:.3g}" for name, rate in rates.items())
        yield (
            f"the learning-rate schedule is {length} steps long instead of {earlier}; "
            f"the rate at step {step} is {listed}"
        )


def never_flat(recipe: Recipe) -> Iterator[str]:
    """A sentence if there are too few evaluations for stop_when_flat: one best, then flat ones."""
    asked, every = recipe.stop_when_flat, recipe.evaluate_every
    before_end = (recipe.steps - 1) // every if every else 0
    if asked and before_end <= asked:
        yield (
            f"stop_when_flat {asked} cannot stop this run: it is evaluated {before_end} times "
            f"before its last step, {recipe.steps}; lower --evaluate-every ({every})"
        )


def changed_machine(about: Mapping[str, Any], world: World) -> Iterator[str]:
    """A sentence if steps may differ in the last digits from those of a run without a stop."""
    versions, threads = about.get("versions"), torch.get_num_threads()
    known = versions if isinstance(versions, Mapping) else {}
    changed = hardware.changes(about.get("machine"), known, world.device)
    if world.device.type == "cpu" and about.get("threads", threads) != threads:
        changed.append(f"threads were {about['threads']}, are {threads}")
    if changed:
        yield f"from here on, steps differ from those of an uninterrupted run: {'; '.join(changed)}"


def settle_data(
    path: Path, stream: Stream, fixed: Fixed | None, recipe: Recipe, say: Callable[[str], None]
) -> str:
    """The files are those of the last start, or the user has accepted others; returns the digest
    of the validation data."""
    valid = record.record_of(fixed.samples.source if fixed else None)
    now = {"train": record.record_of(stream.samples.source), "valid": valid}
    record.settle(path, now, recipe.accept_changed_data, say)
    return valid.digest

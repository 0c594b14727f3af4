"""Measuring on held-out data, spread over processes; it changes nothing of the run."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.engine.part import LivePart
from quintet.engine.stream import Fixed
from quintet.engine.task import Batch, Rows, Task
from quintet.engine.world import World


@contextmanager
def at_rest(parts: Sequence[LivePart], averaged: bool) -> Iterator[None]:
    """Eval mode, no gradients, averaged weights if asked; random numbers as before afterwards."""
    training = [part.module.training for part in parts]
    state = torch.get_rng_state()
    with ExitStack() as stack, torch.no_grad():
        for part in parts:
            part.module.eval()
            if averaged:
                stack.enter_context(part.averaged())
        torch.manual_seed(fold("evaluate"))
        try:
            yield
        finally:
            for part, mode in zip(parts, training):
                part.module.train(mode)
            torch.set_rng_state(state)


def measure(task: Task, nets: Mapping[str, Any], fixed: Fixed, world: World) -> dict[str, float]:
    """Every held-out sample once. One or several processes give the same numbers, bit for bit:
    batches are the same, and their results are added in the order of the data."""
    mine = []
    for batch, count in fixed:
        with world.autocast():
            mine.append(_on_host(task.measure(nets, batch), count))
    dealt = world.gather_objects(mine)
    ordered = [dealt[i % world.size][i // world.size] for i in range(len(fixed.batches))]
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for result in ordered:
        for name, (kind, first, second) in result.items():
            if kind == "rows":
                rows[name].append(first)
            else:
                totals[name][0] += first
                totals[name][1] += second
    metrics = task.summarise({name: torch.cat(values) for name, values in rows.items()})
    return {name: total / max(count, 1e-12) for name, (total, count) in totals.items()} | metrics


def _on_host(measured: Mapping[str, Any], count: int) -> dict[str, tuple[str, Any, Any]]:
    found: dict[str, tuple[str, Any, Any]] = {}
    for name, value in measured.items():
        if isinstance(value, Rows):
            found[name] = ("rows", value.values[:count].cpu(), None)
        else:
            found[name] = ("tally", float(value.total), float(value.count))
    return found


def first_batch(fixed: Fixed) -> Batch | None:
    return next((batch for batch, _ in fixed), None)

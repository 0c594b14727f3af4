"""Measuring on held-out data, spread over processes; it changes nothing of the run."""

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine import checkpoint
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder
from quintet.engine.keys import Key, fold
from quintet.engine.part import LivePart, load_strictly
from quintet.engine.stream import Fixed, read_sample
from quintet.engine.task import Batch, Rows, Task
from quintet.engine.world import World


@contextmanager
def at_rest(parts: Sequence[LivePart], averaged: bool) -> Generator[None, None, None]:
    """Eval mode, no gradients, averaged weights if asked; random numbers as before afterwards.

    Nothing is compiled or tuned for it: half a minute for a graph that sees a few hundred samples,
    and another one for the last, short batch.
    """
    modes = {module: module.training for part in parts for module in part.module.modules()}
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    eager = torch.compiler.set_stance("force_eager")
    cudnn = torch.backends.cudnn
    with ExitStack() as stack, torch.no_grad(), eager:
        stack.callback(setattr, cudnn, "benchmark", cudnn.benchmark)
        cudnn.benchmark = False
        for part in parts:
            part.module.eval()
            if averaged:
                stack.enter_context(part.averaged())
        torch.default_generator.manual_seed(fold("evaluate"))
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            random.setstate(state[0])
            np.random.set_state(state[1])
            torch.set_rng_state(state[2])


def measure(task: Task, nets: Mapping[str, Any], fixed: Fixed, world: World) -> dict[str, float]:
    """Every held-out sample once, with the weights as they are."""
    return measure_under([nullcontext], task, nets, fixed, world)[0]


def measure_under(
    sides: Sequence[Callable[[], AbstractContextManager[Any]]],
    task: Task,
    nets: Mapping[str, Any],
    fixed: Fixed,
    world: World,
    show: Callable[[Batch], None] | None = None,
) -> list[dict[str, float]]:
    """Every held-out sample once under each of the sides, and loaded once for all of them.

    One or several processes give the same numbers, bit for bit: batches are the same, and their
    results are added in the order of the data. The first batch is shown under the first side.
    """
    mine: list[list[Any]] = [[] for _ in sides]
    for batch in fixed:
        for results, side in zip(mine, sides):
            with side(), world.autocast():
                results.append(_on_host(task.measure(nets, batch)))
                if show is not None:
                    show(batch)
                    show = None
    return [_summed(task, results, fixed, world) for results in mine]


def _summed(task: Task, mine: list[Any], fixed: Fixed, world: World) -> dict[str, float]:
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


def _on_host(measured: Mapping[str, Any]) -> dict[str, tuple[str, Any, Any]]:
    found: dict[str, tuple[str, Any, Any]] = {}
    for name, value in measured.items():
        if isinstance(value, Rows):
            found[name] = ("rows", value.values.cpu(), None)
        else:
            found[name] = ("tally", float(value.total), float(value.count))
    return found


class Joined:
    """All samples of a folder, whichever side of the split they are on."""

    def __init__(self, sources: Sequence[Any]):
        self.places = [(source, index) for source in sources for index in range(len(source))]

    def __len__(self) -> int:
        return len(self.places)

    def keyed(self, index: int, key: Key | None) -> Any:
        source, place = self.places[index]
        return read_sample(source, place, key)


def of_run(
    task: Task, recipe: Recipe, path: Path, world: World, step: int | None, whole: bool
) -> dict[str, float]:
    """Measure a run's averaged weights; `whole` takes all of the data, not the held-out share."""
    folder = RunFolder.open(path)
    chosen = step if step is not None else checkpoint.newest_sound(folder.checkpoints, print)
    if chosen is None or chosen not in folder.steps():
        raise RunError(f"{path} has no checkpoint {'' if step is None else f'at step {step} '}yet")
    files = checkpoint.read(checkpoint.path_of(folder.checkpoints, chosen))
    nets = {}
    for name, part in task.parts.items():
        nets[name] = world.place_module(part.network).eval().requires_grad_(False)
        if part.optimiser is not None:
            load_strictly(nets[name], {**files[name], **files.get(f"{name}.ema", {})}, name)
    task.prepare(world)
    held = task.data("valid")
    source = Joined([s for s in (task.data("train"), held) if s is not None]) if whole else held
    if source is None or not len(source):
        raise RunError(f"{path} has no held-out data; name a folder to measure on")
    fixed = Fixed(source, task.collate, recipe.measured_at_once, world, recipe.workers)
    with torch.no_grad():
        metrics = measure(task, nets, fixed, world)
    return {"step": chosen, "samples": len(source), **metrics}

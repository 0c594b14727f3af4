"""Micro-batches that fit: the largest is found by dry steps, and a step that does not fit is
explained.

A dry step is a whole step of a run that is built for it and thrown away: every update due, the
heaviest of some samples in every place of the batch. Nothing of it reaches the run that follows.
"""

import copy
import dataclasses
import gc
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quintet.engine.config import Recipe
from quintet.engine.data.plans import Request
from quintet.engine.data.stream import Collate, Samples, place
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.machine import memory
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch, StepContext, Task, Update
from quintet.engine.update import apply

LOOKED_AT = 32
"""Samples among which the heaviest is sought."""
SPARE = 0.05
"""Share of the memory that is left alone: evaluation and fragments need some."""
AHEAD = 1000
"""Steps among which one is sought at which every update is due."""


# -- searching ------------------------------------------------------------------------------


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def largest(sizes: Sequence[int], fits: Callable[[int], bool], downwards: bool) -> int | None:
    """The largest of ascending sizes that fits, or None: by doubling, then bisecting.

    `downwards` halves from the largest instead, for devices that may be tried past their memory:
    one question where everything fits, two where half of it does.
    """
    low, high = -1, len(sizes)
    index = high - 1 if downwards else 0
    while high - low > 1:
        low, high = (index, high) if fits(sizes[index]) else (low, index)
        if downwards and low < 0:
            halves = (i for i in range(high - 1, -1, -1) if 2 * sizes[i] <= sizes[high])
            index = next(halves, 0)
        elif not downwards and high == len(sizes):
            twice = (i for i in range(low + 1, high) if sizes[i] >= 2 * sizes[low])
            index = next(twice, high - 1)
        else:
            index = (low + high) // 2
    return sizes[low] if low >= 0 else None


def with_micro_batch(recipe: Recipe, size: int) -> Recipe:
    """The same global batch in micro-batches of another size; evaluation takes less in step."""
    whole, held = recipe.batch_size * recipe.accumulate, recipe.evaluate_batch
    held = held and max(1, held * size // recipe.batch_size)
    return dataclasses.replace(
        recipe, batch_size=size, accumulate=whole // size, evaluate_batch=held
    )


def find(build: Callable[[Any], Task], recipe: Recipe, world: World) -> Recipe:
    """The recipe with the largest micro-batch that fits on every process."""
    fits = Probe(build, recipe, world)
    found = largest(divisors(recipe.batch_size), fits, world.device.type == "cuda")
    if found is None:
        raise RunError(
            f"--auto-batch: not even one sample at a time fits. {remedies(recipe, world.precision)}"
        )
    return with_micro_batch(recipe, found)


class Probe:
    """Whether a step with micro-batches of so many samples fits, found by taking it."""

    def __init__(self, build: Callable[[Any], Task], recipe: Recipe, world: World):
        self.build, self.recipe, self.world = build, recipe, world
        # Alone: where one process runs out, the others must not wait for its gradients.
        self.alone = copy.copy(world)
        # And eager: compiling takes minutes for each size, and eager steps need no less memory.
        vars(self.alone).update(size=1, rank=0, is_main=True, compiles=False)
        self.start = memory.resident()
        self.budget = (1 - SPARE) * memory.available() / world.size
        self.needed: dict[int, int] = {}

    def __call__(self, size: int) -> bool:
        short = self._foreseen(size) > self.budget or not self._try(size)
        return not self.world.sum(torch.tensor(float(short), device=self.world.device))

    def _try(self, size: int) -> bool:
        memory.forget_peak()
        exhausted = False
        try:
            with undisturbed():
                dry_run(self.build, with_micro_batch(self.recipe, size), self.alone)
        except Exception as error:
            exhausted = memory.ran_out(error)  # and no reference to it: its frames hold tensors
            if not exhausted:
                raise
        if self.world.device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(self.world.device)
            exhausted = exhausted or free < SPARE * whole
        else:
            self.needed[size] = memory.peak() - self.start
        self._clean()
        return not exhausted

    def _foreseen(self, size: int) -> float:
        """Bytes by the straight line through what smaller sizes needed. A CPU must not be tried
        past its memory: the system would kill a process, and not tell it."""
        if len(self.needed) < 2:
            return 0.0
        (a, low), (b, high) = sorted(self.needed.items())[-2:]
        return high + max(0.0, (high - low) / (b - a)) * (size - b)

    def _clean(self) -> None:
        gc.collect()
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()


# -- dry steps ------------------------------------------------------------------------------


def dry_run(build: Callable[[Any], Task], recipe: Recipe, world: World) -> None:
    """Two steps of a run that is thrown away; at the second the optimisers have their moments."""
    task = build(recipe)
    with untouched(task):
        run = Run(task, recipe, world, RunFolder(Path()))
        try:
            run.step = busiest(task.updates)
            source = run.stream.samples.source
            batches = heavy_batches(task, source, recipe, world)
            for _ in range(2):
                dry_step(run, batches)
        finally:
            run.close()


def busiest(updates: Sequence[Update]) -> int:
    """A step at which every update is due, or the last of them begins."""
    asked = [update.when for update in updates if update.when.every]
    first = max((when.start for when in asked), default=0)
    steps = range(first, first + AHEAD)
    return next((step for step in steps if all(when.due(step) for when in asked)), first)


def dry_step(run: Run, batches: Sequence[Batch]) -> None:
    samples = sum(batch.size for batch in batches)
    none = torch.zeros((), device=run.world.device)
    context = StepContext(run.step, run.recipe.seed, samples, run.world, none)
    for update in run.task.updates:
        if update.when.due(run.step):
            apply(run, update, batches, context)


def heavy_batches(task: Task, source: Any, recipe: Recipe, world: World) -> list[Batch]:
    """The micro-batches of a step, with the heaviest sample in every place."""
    count = len(source)
    samples = Samples(source, recipe.seed)
    places = sorted({count * turn // LOOKED_AT for turn in range(LOOKED_AT)})
    read = [samples[Request(0, index)] for index in places if index < count]
    sound = [found for found in read if found[0] is not None]
    if not sound:
        raise RunError(f"none of {len(read)} samples could be read: {read[0][3][-1].reason}")
    item, index, key, _ = max(sound, key=lambda found: weight(found[0]))
    row: tuple[Any, int, Key, list[Any]] = (item, index, key, [])
    collate = Collate(task.collate)
    micro = [collate([row] * recipe.batch_size) for _ in range(recipe.accumulate)]
    return [place(loaded, [], world) for loaded in micro]


def weight(item: Any) -> int:
    """Bytes of the tensors, arrays and texts of a sample, however they are nested."""
    if isinstance(item, Tensor | np.ndarray):
        return item.nbytes
    if isinstance(item, str):
        return len(item)
    if isinstance(item, dict):
        return sum(map(weight, item.values()))
    return sum(map(weight, item)) if isinstance(item, list | tuple) else 0


# -- leaving no trace -----------------------------------------------------------------------


@contextmanager
def undisturbed() -> Generator[None, None, None]:
    """Global generators are as before afterwards."""
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
        if device is not None:
            torch.cuda.set_rng_state(device)


@contextmanager
def untouched(task: Task) -> Generator[None, None, None]:
    """Networks are as before afterwards: a trainer's own model outlives the dry run."""
    modules = list(_modules(task))
    modes = [(each, each.training) for module in modules for each in module.modules()]
    asked = [(p, p.requires_grad) for module in modules for p in module.parameters()]
    values = [{name: t.detach().clone() for name, t in _tensors(module)} for module in modules]
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode
        for parameter, wanted in asked:
            parameter.requires_grad_(wanted).grad = None
        with torch.no_grad():
            for module, saved in zip(modules, values):
                for name, tensor in _tensors(module):
                    tensor.copy_(saved[name])


def _modules(task: Task) -> Iterator[nn.Module]:
    for part in task.parts.values():
        yield part.network
        if part.extra_state is not None:
            yield part.extra_state


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """With the buffers that are not saved, where statistics of a step under way are gathered."""
    yield from module.named_parameters()
    yield from module.named_buffers()


# -- explaining -----------------------------------------------------------------------------


def remedies(recipe: Recipe, precision: str) -> str:
    """What to change, the nearest first."""
    found: list[str] = []
    if recipe.batch_size > 1:
        less = with_micro_batch(recipe, divisors(recipe.batch_size)[-2])
        split = f"--batch-size {less.batch_size} --accumulate {less.accumulate}"
        found.append(f"{split}, which keeps the global batch")
        found.append("--auto-batch, which finds the largest micro-batch that fits")
    if recipe.evaluation_batch > recipe.batch_size:
        found.append(f"--evaluate-batch {recipe.batch_size}, if it was evaluating")
    if precision != "bf16":
        found.append("--precision bf16")
    found.append("a smaller model, or smaller samples")
    return f"Try {'; or '.join(found)}"


def explained(recipe: Recipe, world: World, run: Run | None, error: BaseException) -> RunError:
    """The end of a run that ran out of memory, as a sentence."""
    where = "while the run was built"
    if run is not None:
        part = f" in the update of '{run.focus.name}'" if run.focus else ""
        where = f"at step {run.step}{part}"
    asked = f"micro-batches of {recipe.batch_size} x accumulate {recipe.accumulate}"
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    advice = remedies(recipe, world.precision)
    if run is not None and run.step:
        advice += (
            f". quintet resume {run.folder.path} --batch-size N resumes from the last checkpoint"
        )
    return RunError(
        f"out of memory on {world.device.type} {where}, with {asked} in {world.precision} "
        f"({said}). {advice}"
    )

"""Search for the largest micro-batch that fits into memory, and the error when a step does not.

A dry step is a full step of a temporary run: every update is due, and the whole batch consists of
the largest of some samples. It does not affect the real run.
"""

import copy
import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quintet.engine.config import Recipe
from quintet.engine.data.plans import Request
from quintet.engine.data.stream import Samples, collated, to_device
from quintet.engine.data.transfer import Transfer
from quintet.engine.errors import RunError
from quintet.engine.keys import preserved_generators
from quintet.engine.machine import memory
from quintet.engine.machine.compiling import UNDECIDED
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch, StepContext, Task, Update
from quintet.engine.update import apply
from quintet.suggest import command

NUM_PROBED = 32
"""Samples among which the largest is searched."""
RESERVE = 0.05
"""Fraction of the memory kept free, for evaluation and fragmentation."""
SEARCHED_STEPS = 1000
"""Steps searched for one at which every update is due."""


# -- search ---------------------------------------------------------------------------------


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def largest(sizes: Sequence[int], fits: Callable[[int], bool], downwards: bool) -> int | None:
    """The largest of ascending sizes that fits, or None: by doubling, then bisecting.

    `downwards` halves from the largest instead, for devices where running out of memory is
    harmless: one trial if everything fits, two if half of it does.
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


def find(build: Callable[[Any], Task], recipe: Recipe, world: World) -> Recipe:
    """The recipe with the largest micro-batch that fits on every process."""
    fits = Probe(build, recipe, world)
    size = largest(divisors(recipe.batch_size), fits, world.device.type == "cuda")
    if size is None:
        raise RunError(
            f"--auto-batch: not even one sample at a time fits. {remedies(recipe, world.precision)}"
        )
    return recipe.with_micro_batch(size)


class Probe:
    """Whether a step with micro-batches of a given size fits, found by running it."""

    def __init__(self, build: Callable[[Any], Task], recipe: Recipe, world: World):
        self.build, self.recipe, self.world = build, recipe, world
        # One process: if one runs out of memory, the others must not wait for its gradients.
        self.alone = copy.copy(world)
        # Eager: compilation takes minutes per size, and eager steps need no less memory.
        vars(self.alone).update(size=1, rank=0, is_main=True, compiles=False)
        self.start = memory.resident()
        self.budget = (1 - RESERVE) * memory.available() / world.size
        self.needed: dict[int, int] = {}

    def __call__(self, size: int) -> bool:
        fails = self._predicted(size) > self.budget or not self._try(size)
        return not self.world.sum(torch.tensor(float(fails), device=self.world.device))

    def _try(self, size: int) -> bool:
        memory.forget_peak()
        exhausted = False
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        try:
            with preserved_generators(devices):
                dry_run(self.build, self.recipe.with_micro_batch(size), self.alone)
        except Exception as error:
            exhausted = memory.ran_out(error)  # keep no reference: its frames hold tensors
            if not exhausted:
                raise
        if self.world.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.world.device)
            exhausted = exhausted or free < RESERVE * total
        else:
            self.needed[size] = memory.peak() - self.start
        gc.collect()
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        return not exhausted

    def _predicted(self, size: int) -> float:
        """Bytes, extrapolated linearly from smaller sizes. A CPU must not be tried past its memory:
        the system would kill a process without an error."""
        if len(self.needed) < 2:
            return 0.0
        (a, low), (b, high) = sorted(self.needed.items())[-2:]
        return high + max(0.0, (high - low) / (b - a)) * (size - b)


# -- dry steps ------------------------------------------------------------------------------


def dry_run(build: Callable[[Any], Task], recipe: Recipe, world: World) -> None:
    """Two steps of a temporary run; by the second the optimizers have their moments."""
    task = build(recipe)
    with preserved_networks(task):
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
    """A step at which every update is due, or else the first step of the last one."""
    schedules = [update.when for update in updates if update.when.every]
    first = max((when.start for when in schedules), default=0)
    steps = range(first, first + SEARCHED_STEPS)
    return next((step for step in steps if all(when.due(step) for when in schedules)), first)


def dry_step(run: Run, batches: Sequence[Batch]) -> None:
    samples = sum(batch.size for batch in batches)
    none = torch.zeros((), device=run.world.device)
    context = StepContext(run.step, run.recipe.seed, samples, run.world, none)
    for update in run.task.updates:
        if update.when.due(run.step):
            apply(update, run.parts, batches, context, run.meters)


def heavy_batches(task: Task, source: Any, recipe: Recipe, world: World) -> list[Batch]:
    """The micro-batches of a step, consisting of the largest sample."""
    count = len(source)
    samples = Samples(source, recipe.seed)
    indices = sorted({count * part // NUM_PROBED for part in range(NUM_PROBED)})
    probed = [samples[Request(0, index)] for index in indices if index < count]
    readable = [sample for sample in probed if sample[0] is not None]
    if not readable:
        raise RunError(f"none of {len(probed)} samples could be read: {probed[0][3][-1].reason}")
    item, index, key, _ = max(readable, key=lambda sample: num_bytes(sample[0]))
    rows = [(item, index, key, [])] * recipe.batch_size
    micro = [collated(task.collate, rows) for _ in range(recipe.accumulate)]
    return [to_device(loaded, [], Transfer(world)) for loaded in micro]


def num_bytes(item: Any) -> int:
    """Bytes of the tensors, arrays and strings in a nested sample."""
    if isinstance(item, Tensor | np.ndarray):
        return item.nbytes
    if isinstance(item, str):
        return len(item)
    if isinstance(item, dict):
        return sum(map(num_bytes, item.values()))
    return sum(map(num_bytes, item)) if isinstance(item, list | tuple) else 0


# -- preserved state ------------------------------------------------------------------------


@contextmanager
def preserved_networks(task: Task) -> Generator[None, None, None]:
    """Restore the networks afterwards: a model passed to a trainer outlives the dry run."""
    parts = task.parts.values()
    modules = [m for part in parts for m in (part.network, part.extra_state) if m is not None]
    modes = [(each, each.training) for module in modules for each in module.modules()]
    trainable = [(p, p.requires_grad) for module in modules for p in module.parameters()]
    values = [{name: t.detach().clone() for name, t in _tensors(module)} for module in modules]
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode
        for parameter, requires_grad in trainable:
            parameter.requires_grad_(requires_grad).grad = None
        with torch.no_grad():
            for module, saved in zip(modules, values):
                for name, tensor in _tensors(module):
                    tensor.copy_(saved[name])


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, those included that are not saved."""
    yield from module.named_parameters()
    yield from module.named_buffers()


# -- errors ---------------------------------------------------------------------------------


def remedies(recipe: Recipe, precision: str) -> str:
    """What to change, the smallest change first."""
    changes: list[str] = []
    if recipe.batch_size > 1:
        less = recipe.with_micro_batch(divisors(recipe.batch_size)[-2])
        split = f"--batch-size {less.batch_size} --accumulate {less.accumulate}"
        changes.append(f"{split}, which keeps the global batch")
        changes.append("--auto-batch, which finds the largest micro-batch that fits")
    if recipe.evaluation_batch > recipe.batch_size:
        changes.append(f"--evaluate-batch {recipe.batch_size}, if it was evaluating")
    if precision != "bf16":
        changes.append("--precision bf16")
    changes.append("a smaller model, or smaller samples")
    return f"Try {'; or '.join(changes)}"


def explained(recipe: Recipe, world: World, run: Run | None, error: BaseException) -> RunError:
    """The error of a run that ran out of memory."""
    where = "while the run was built"
    if run is not None:
        part = f" in the update of '{run.parts.focus.name}'" if run.parts.focus else ""
        where = f"at step {run.step}{part}"
    batch = f"micro-batches of {recipe.batch_size} x accumulate {recipe.accumulate}"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    advice = remedies(recipe, world.precision)
    if run is not None and run.compiler.start == UNDECIDED:
        advice += ". Compiled steps need less memory: --compile on compiles from the first one"
    if run is not None and run.step and recipe.batch_size > 1:
        less = divisors(recipe.batch_size)[-2]
        again = command("resume", run.folder.path, "--batch-size", less)
        advice += f". {again} resumes from the last checkpoint"
    return RunError(
        f"out of memory on {world.device.type} {where}, with {batch} in {world.precision} "
        f"({reason}). {advice}"
    )

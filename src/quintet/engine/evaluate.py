"""Evaluation on validation data, distributed over processes and free of side effects on the run."""

import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.engine.config import Recipe
from quintet.engine.data.source import Source, as_source
from quintet.engine.data.stream import Fixed
from quintet.engine.errors import RunError
from quintet.engine.keys import Key, fold, preserved_generators
from quintet.engine.machine import fsdp
from quintet.engine.machine.world import World
from quintet.engine.models.pretrained import initial_weights
from quintet.engine.part import LivePart, Parts, load_strictly
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch, Rows, Task


class Judged(NamedTuple):
    """What outside judges say at one evaluation."""

    metrics: dict[str, float]
    receipts: dict[str, Any]
    """What each judge measured, by its name."""


Outside = Callable[[Mapping[str, Any], Source, World], Judged]
"""Outside judges, of networks and validation samples."""


@contextmanager
def eval_mode(parts: Sequence[LivePart], averaged: bool) -> Generator[None, None, None]:
    """Eval mode without gradients, with EMA weights if `averaged`; random states are restored.

    No compilation or cuDNN autotuning: it would take half a minute for a graph that sees a few
    hundred samples, and again for the last, short batch.
    """
    modes = {module: module.training for part in parts for module in part.module.modules()}
    compiles = "torch._dynamo" in sys.modules  # slow to import where nothing is compiled
    eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    cudnn = torch.backends.cudnn
    with ExitStack() as stack, torch.no_grad(), eager, preserved_generators():
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


def measure(task: Task, nets: Mapping[str, Any], fixed: Fixed, world: World) -> dict[str, float]:
    """Metrics of all validation samples with the current weights."""
    try:
        return measure_in_contexts([nullcontext], task, nets, fixed, world)[0]
    except EvaluationFailed as failure:
        raise failure.reason from None


def measure_in_contexts(
    contexts: Sequence[Callable[[], AbstractContextManager[Any]]],
    task: Task,
    nets: Mapping[str, Any],
    fixed: Fixed,
    world: World,
    show: Callable[[Batch], None] | None = None,
) -> list[dict[str, float]]:
    """Metrics of all validation samples in each of the contexts; each batch is loaded once.

    Any number of processes gives the same numbers, bit for bit: batches are the same, and their
    results are added in the order of the data. The first batch is shown in the first context.
    """
    local: list[list[Any]] = [[] for _ in contexts]
    failure = None
    try:
        for batch in fixed:
            for results, context in zip(local, contexts):
                with context(), world.autocast():
                    results.append(_begin_copy(task.measure(nets, batch)))
                    if show is not None:
                        show(batch)
                        show = None
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        local = [[_on_host(measured) for measured in results] for results in local]
    except Exception as error:
        failure = error
    messages = world.gather_objects(failure and (str(failure) or type(failure).__name__))
    if any(messages):
        raise EvaluationFailed(next(filter(None, messages))) from failure
    return [_reduce(task, results, fixed, world) for results in local]


def measure_parts(
    task: Task, parts: Parts, fixed: Fixed, world: World, show: Callable[[Batch], None] | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics under EMA weights and under live weights."""
    live, data = list(parts.values()), (task, parts.nets, fixed, world)
    if not world.shards:
        sides = [partial(eval_mode, live, averaged) for averaged in (True, False)]
        averaged, current = measure_in_contexts(sides, *data, show)
        return averaged, current
    # Full weights are gathered once for each, not in each call: processes have different numbers of
    # batches, the main process makes exhibits, and networks are called by other methods than
    # forward. With shards each of these would deadlock.
    context, networks = [partial(eval_mode, live, False)], [part.module for part in live]
    with ExitStack() as stack:
        for part in live:
            stack.enter_context(part.averaged())
        stack.enter_context(fsdp.gathered(networks))
        (averaged,) = measure_in_contexts(context, *data, show)
    with fsdp.gathered(networks):
        (current,) = measure_in_contexts(context, *data)
    return averaged, current


class EvaluationFailed(Exception):
    """An evaluation that failed on some process, raised on all of them so that they can save
    together."""

    @property
    def reason(self) -> BaseException:
        """The error of this process, or a sentence about that of another one."""
        return self.__cause__ or RunError(f"the evaluation failed on another process: {self}")


def _reduce(task: Task, local: list[Any], fixed: Fixed, world: World) -> dict[str, float]:
    gathered = world.gather_objects(local)
    ordered = [gathered[i % world.size][i // world.size] for i in range(len(fixed.batches))]
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    rows: dict[str, list[Tensor]] = defaultdict(list)
    for result in ordered:
        for name, value in result.items():
            if isinstance(value, Tensor):
                rows[name].append(value)
            else:
                totals[name][0] += value[0]
                totals[name][1] += value[1]
    metrics = task.summarise({name: torch.cat(values) for name, values in rows.items()})
    return {name: total / max(count, 1e-12) for name, (total, count) in totals.items()} | metrics


def _begin_copy(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Rows on their way to the host: reading them here would have the GPU wait for the next batch
    at every batch."""
    return {
        name: value.values.to("cpu", non_blocking=True) if isinstance(value, Rows) else value
        for name, value in measured.items()
    }


def _on_host(measured: Mapping[str, Any]) -> dict[str, Tensor | tuple[float, float]]:
    return {
        name: value if isinstance(value, Tensor) else (float(value.total), float(value.count))
        for name, value in measured.items()
    }


class ConcatData:
    """Concatenation of the splits of a folder."""

    def __init__(self, sources: Sequence[Source]):
        self.samples = [(source, index) for source in sources for index in range(len(source))]

    def __len__(self) -> int:
        return len(self.samples)

    def keyed(self, index: int, key: Key | None) -> Any:
        source, own = self.samples[index]
        return source.keyed(own, key)

    def name(self, index: int) -> str:
        source, own = self.samples[index]
        return source.name(own)


class Opened(NamedTuple):
    """A run ready to be evaluated."""

    step: int | None
    """None of an export."""
    nets: dict[str, Any]
    """All parts with EMA weights, in eval mode; an export holds the main one alone."""
    source: Source
    """The samples to evaluate on."""


def open_run(task: Task, path: Path, world: World, whole: bool) -> Opened:
    """The EMA weights of a run or an export, and its validation data; `whole`: all data of the
    task."""
    chosen, weights = _weights(task, path)
    nets: dict[str, Any] = {}
    for name, part in task.parts.items():
        if part.optimizer is not None and name not in weights:
            continue
        nets[name] = world.place_module(part.network).eval().requires_grad_(False)
        if name in weights:
            load_strictly(nets[name], weights[name], name)
    task.prepare(world)
    valid = source = task.data("valid")
    if whole:
        source = ConcatData([as_source(s) for s in (task.data("train"), valid) if s is not None])
    if source is None or not len(source):
        raise RunError(f"{path} has no validation data; give a folder to evaluate on")
    return Opened(chosen, nets, as_source(source))


def _weights(task: Task, path: Path) -> tuple[int | None, dict[str, dict[str, Tensor]]]:
    """The step of a checkpoint, or None of an export, and EMA weights by part."""
    folder = RunFolder.open(path)
    if "model" in folder.about:
        return None, initial_weights(str(path), task)
    step = folder.chosen_step(print)
    files = checkpoint.read(checkpoint.path_of(folder.checkpoints, step))
    trained = (name for name, part in task.parts.items() if part.optimizer is not None)
    return step, {name: checkpoint.averaged(files, name) for name in trained}


def evaluate_opened(task: Task, recipe: Recipe, opened: Opened, world: World) -> dict[str, float]:
    """Metrics of an opened run."""
    source = opened.source
    fixed = Fixed(source, task.collate, recipe.evaluation_batch, world, recipe.workers)
    with torch.no_grad():
        metrics = measure(task, opened.nets, fixed, world)
    step = {} if opened.step is None else {"step": opened.step}
    return {**step, "samples": len(source), **metrics}


def evaluate_run(
    task: Task, recipe: Recipe, path: Path, world: World, whole: bool
) -> dict[str, float]:
    """Metrics of a run's EMA weights; `whole` measures all data, not the validation split."""
    return evaluate_opened(task, recipe, open_run(task, path, world, whole), world)

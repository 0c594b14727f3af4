"""Time and memory of a recipe on a GPU that is not here, from the operations of its steps.

Steps are traced with fake tensors, which have shapes but no values, so that a network of any size
is traced on a laptop. The trace counts the operations of matrix products, convolutions and
attention, and the bytes that are alive at once. What those operations take is the share of the
GPU's matmul rate that steps of the same room reached when they were measured: `matmul_share` of the
recipe, which includes all that is bound by memory.
"""

import dataclasses
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from quintet.engine import building
from quintet.engine.config import Recipe
from quintet.engine.data.plans import Plan
from quintet.engine.errors import RunError
from quintet.engine.machine.world import World
from quintet.engine.part import LiveHandle
from quintet.engine.task import Batch, Part, StepContext, Task, Update
from quintet.engine.tools.estimate import starts
from quintet.engine.when import When

MATMUL_RATE = 800e12
"""Operations per second of a bf16 product of 8192 x 8192 matrices: 773 to 806 on an H200."""
MEMORY = {"h200": 139 * 2**30, "h100": 79 * 2**30}
"""Bytes that torch sees. Both have the same matrix units; the H100's memory is slower, so that it
takes longer than planned where steps are bound by memory."""
MOMENTS = {"adamw": 2, "adam": 2, "lion": 1, "muon": 1}
TRACED = 2
"""Micro-batches of a step that are traced; the others are like them."""


PLANNED_STEPS = 64


class Cost(NamedTuple):
    """Operations of a step, and bytes that it holds beside weights and gradients."""

    operations: float
    activations: int


def plan(build: Callable[[Any], Task], recipe: Recipe, gpu: str) -> dict[str, Any]:
    """Facts about a run on one GPU, as `estimate.measure` reports them, and what they are of."""
    world = World(dataclasses.replace(recipe, device="cpu", fsdp=False, processes=None))
    world.precision = "bf16" if recipe.precision == "auto" else recipe.precision
    with torch.device("meta"):
        task = build(recipe)
    task.abstract_prepare(world)
    parameters, state = counts(task), state_bytes(task)
    traced = min(recipe.accumulate, TRACED)
    source = dataclasses.replace(recipe, workers=0, accumulate=traced)
    stream = building.stream(task, source, world)
    trace = Trace(task, world, recipe, stream.take(traced))
    scale = recipe.accumulate / traced
    phases = [(start, scale * trace.operations(start)) for start in starts(task.updates, recipe)]
    samples = samples_per_step(stream.plan, recipe.accumulate)
    rate = MATMUL_RATE * recipe.matmul_share
    activations = max(cost.activations for cost in trace.costs.values())
    return {
        "device": gpu,
        "precision": world.precision,
        "batch_size": recipe.batch_size,
        "accumulate": recipe.accumulate,
        "parameters": parameters,
        "rate": rate,
        "peak": sum(state.values()) + activations,
        "bytes": {**state, "activations": activations},
        "memory": MEMORY[gpu],
        "checkpoint": saved_bytes(task) + state["moments"] + state["averages"],
        "phases": [
            {"start": start, "seconds": count / rate, "samples": samples, "operations": count}
            for start, count in phases
        ],
    }


def counts(task: Task) -> dict[str, int]:
    """Trainable parameters of each part that learns."""
    return {
        name: sum(p.numel() for p in part.network.parameters() if p.requires_grad)
        for name, part in task.parts.items()
        if part.optimizer is not None
    }


def samples_per_step(plan: Plan, accumulate: int) -> float:
    """Mean of some steps: batches by length have more of the shorter samples."""
    position = 0
    for _ in range(PLANNED_STEPS):
        position += sum(map(len, plan.micro_batches(position, accumulate)))
    return position / PLANNED_STEPS


def state_bytes(task: Task) -> dict[str, int]:
    """Of one process, in fp32. One part learns at a time, so gradients of the others are freed."""
    size = {name: 4 * count for name, count in counts(task).items()}
    learning = {n: part.optimizer for n, part in task.parts.items() if part.optimizer is not None}
    networks = [(part.network, part.optimizer is None) for part in task.parts.values()]
    return {
        "weights": sum(
            p.numel() * (p.element_size() if frozen else 4)
            for network, frozen in networks
            for p in network.parameters()
        ),
        "gradients": max(size.values()),
        "moments": sum(MOMENTS[config.optimizer] * size[n] for n, config in learning.items()),
        "averages": sum(size[n] for n, config in learning.items() if config.ema_decay),
    }


def saved_bytes(task: Task) -> int:
    """Weights in a checkpoint: those of learning parts, also what is frozen in them."""
    networks = [part.network for part in task.parts.values() if part.optimizer is not None]
    return 4 * sum(
        parameter.numel()
        for network in networks
        for names in [network.state_dict().keys()]
        for name, parameter in network.named_parameters()
        if name in names
    )


class Trace:
    """Steps of a task with fake tensors."""

    def __init__(self, task: Task, world: World, recipe: Recipe, batches: Sequence[Batch]):
        self.task, self.world, self.seed = task, world, recipe.seed
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.samples = sum(batch.size for batch in batches)
        self.trained = {
            name: {n for n, p in part.network.named_parameters() if p.requires_grad}
            for name, part in task.parts.items()
        }
        with self.mode:
            for part in task.parts.values():
                if part.optimizer is not None:
                    world.recompute(part.network)
                for module in modules(part):
                    module._apply(self._fake)
            self.batches = [
                Batch(tree_map(self._fake, batch.data), batch.ids, self._fake(batch.keys))
                for batch in batches
            ]
        self.costs: dict[tuple[bool, ...], Cost] = {}
        """Of the kinds of steps, by which cadences are due."""
        self.whens: dict[When, None] = dict.fromkeys(update.when for update in task.updates)

    def _fake(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_meta:
            size, stride, dtype = value.size(), value.stride(), value.dtype
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        return self.mode.from_tensor(value)

    def operations(self, start: int) -> float:
        """Mean of the steps from `start` on: penalties are due at some of them only."""
        self._cost(start)  # after it, the cadences are known
        period = math.lcm(*(when.every for when in self.whens if when.every))
        costs = [self._cost(step).operations for step in range(start, start + period)]
        return sum(costs) / period

    def _cost(self, step: int) -> Cost:
        kind = tuple(when.due(step) for when in self.whens)
        if kind not in self.costs:
            cost = self._step(step)
            kind = tuple(when.due(step) for when in self.whens)
            self.costs[kind] = cost
        return self.costs[kind]

    def _step(self, step: int) -> Cost:
        with ExitStack() as stack:
            stack.enter_context(self.mode)
            alive = stack.enter_context(Alive())
            counter = stack.enter_context(FlopCounterMode(display=False, custom_mapping=ON_CPU))
            context = StepContext(step, self.seed, self.samples, self.world, torch.zeros(()))
            context.whens = self.whens
            for update in self.task.updates:
                if context.due(update.when):
                    self._traced(update, context)
        return Cost(float(counter.get_total_flops()), alive.peak)

    def _traced(self, update: Update, context: StepContext) -> None:
        try:
            self._update(update, context)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise RunError(
                f"the update of '{update.part}' depends on the values of tensors ({error}), so that"
                " it cannot be planned; measure it on a GPU"
            ) from None

    def _update(self, update: Update, context: StepContext) -> None:
        nets: dict[str, Any] = {}
        for name, part in self.task.parts.items():
            live = name == update.part
            nets[name] = part.network.train(live)
            for own, parameter in part.network.named_parameters():
                parameter.requires_grad_(live and own in self.trained[name])
        nets[update.part] = LiveHandle(update.part, nets[update.part], nets[update.part])
        context.update_index += 1
        losses = update.losses(nets, self.batches, context)
        for _ in self.batches:
            with self.world.autocast():
                loss, _ = next(losses)
            loss.backward()
            for parameter in self.task.parts[update.part].network.parameters():
                parameter.grad = None


def modules(part: Part) -> list[nn.Module]:
    return [part.network, *([part.extra_state] if part.extra_state is not None else [])]


class Alive(TorchDispatchMode):
    """The most bytes that are alive at once of what is computed under it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage not in self.known:
            self.known.add(storage)
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def _attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _attention_backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_backward_flop_count(grad, q, k, v)


ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Attention of the CPU, for which torch counts nothing. Causal attention counts in full, as it does
in the measured shares."""

"""Captured steps: on one GPU, everything that a step computes as one CUDA graph per kind of step.

    a few eager steps of a kind ─> capture ─> copy the batch, set the step scalars, replay

Two steps are of one kind if their batches have the same shapes and the same questions of cadence
(`StepContext.due`) have the same answers. What changes from step to step inside a kind enters as
tensors, the step scalars: learning rates, decays, ramps and keys. They are tensors in eager steps
as well, so that a captured step equals an eager one bit for bit.
"""

import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from quintet.engine.data.wire import mapped, tensors_in
from quintet.engine.machine import memory
from quintet.engine.meters import Entry, Meters, stacked
from quintet.engine.task import Batch, StepContext, Task
from quintet.engine.when import When

EAGER = 3
"""Steps of a kind before its capture: kernels are chosen and the optimizer's state is made."""
KINDS = 16
"""Graphs that are kept; steps of further kinds stay eager."""
ROOM = 1.5
"""A step of another kind, with a discriminator say, may need so many times the memory."""


REFUSED = "steps are not captured as CUDA graphs: "
RECOMPUTED = "recomputed activations read the state of the CUDA generator"

T = TypeVar("T")
Kind = tuple[Hashable, Hashable, Hashable]
"""Answers to questions of cadence, shapes of the batches, and their number of samples."""


@dataclass
class Graph:
    """One kind of step."""

    seen: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    inputs: tuple[Tensor, ...] = ()
    metrics: tuple[Entry, ...] = ()
    values: Tensor | None = None
    """The metrics of a replay, in fp64, as reports sum them."""


class Capture:
    """Takes the steps of a run on one GPU: eagerly at first, then by replaying graphs.

    Graphs share one pool of memory: nothing inside of it outlives a step except the metrics, which
    are copied out before the next one. Eager steps and evaluations have memory of their own; where
    there is not enough for both, the graphs give way: they are freed, and captured again later.
    """

    def __init__(
        self,
        task: Task,
        meters: Meters,
        forget_gradients: Callable[[], None],
        say: Callable[[str], None],
    ):
        self.task, self.meters, self.device = task, meters, meters.world.device
        self.forget_gradients, self.say = forget_gradients, say
        self.whens: dict[When, None] = {}
        self.kinds: dict[Kind, Graph] = {}
        self.pool: torch.cuda.MemPool | None = None
        self.step_bytes = 0
        """What an eager step needed at most, beside the state."""
        self.refused = ""
        self.crowded = False
        """Whether an evaluation did not fit beside the graphs."""

    @property
    def shapes(self) -> int:
        """How many shapes of batches there were so far."""
        return max(1, len({kinds for _, kinds, _ in self.kinds}))

    def drop(self) -> None:
        """Forget the graphs: state was loaded into other tensors."""
        self.kinds.clear()
        self.pool = None

    def take(
        self, batches: Sequence[Batch], context: StepContext, work: Callable[..., None]
    ) -> None:
        """`work(batches, context)` computes the step."""
        if self.refused:
            work(batches, context)
            return
        kind = self.kinds.setdefault(self._kind(batches, context), Graph())
        captured = sum(each.graph is not None for each in self.kinds.values())
        if kind.graph is None and (kind.seen < EAGER or captured >= KINDS):
            if kind.seen == 0 and self.pool is not None:
                self._make_room()
            kind.seen += 1
            context.watched = kind.seen <= EAGER
            work(batches, context)
            if context.drew:
                self._refuse("they draw from generators, as dropout does")
            return
        if kind.graph is None and not self._recorded(kind, batches, context, work):
            context.update_index = 0  # nothing of the step was computed
            context.scratch.clear()
            work(batches, context)
            return
        assert kind.graph is not None
        assert kind.values is not None
        torch._foreach_copy_(kind.inputs, tensors(batches))
        kind.graph.replay()
        values = kind.values.clone().unbind()
        self.meters.entries += [
            Entry(context.step, entry.name, value, entry.weight)
            for entry, value in zip(kind.metrics, values)
        ]

    def _kind(self, batches: Sequence[Batch], context: StepContext) -> Kind:
        answers = frozenset((when, when.due(context.step)) for when in self.whens)
        kinds = tuple(self.task.kind(batch) for batch in batches)
        return answers, kinds, context.samples

    def beside(self, evaluation: Callable[[], T]) -> T:
        """What an evaluation returns. One that runs out of memory is repeated without the graphs,
        and later ones begin without them."""
        if self.crowded:
            self.give_way()
        try:
            return evaluation()
        except Exception as error:
            if self.pool is None or not memory.ran_out(error.__cause__ or error):
                raise
        gc.collect()  # the error and its frames, which hold tensors, are a circle
        self.crowded = True
        self.give_way()
        self.say("the graphs of steps are released: evaluations do not fit beside them")
        return evaluation()

    def give_way(self) -> None:
        """Free the graphs and their memory; the next step of a kind captures it again."""
        for kind in self.kinds.values():
            kind.graph, kind.values, kind.inputs = None, None, ()
        self.pool = None
        torch.cuda.empty_cache()

    def _make_room(self) -> None:
        """Before an eager step that might not fit beside the graphs."""
        free, _ = torch.cuda.mem_get_info(self.device)
        if free < ROOM * self.step_bytes:
            self.give_way()

    def _recorded(
        self,
        kind: Graph,
        batches: Sequence[Batch],
        context: StepContext,
        work: Callable[..., None],
    ) -> bool:
        """Whether the step could be captured; if not, no further one is tried."""
        stream, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[stream.device_index]
        state = generator.clone_state()
        self.pool = self.pool or torch.cuda.MemPool()
        try:
            self._record(kind, graph, batches, context, work)
            return True
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
        kind.values = None
        self._abandon(graph, stream)  # after the error, whose frames hold tensors
        generator.graphsafe_set_state(state)  # its own still belongs to the capture
        self._refuse(reason)
        return False

    def _abandon(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        """Undo a failed capture. torch leaves its side stream current, and counts the graph as a
        user of its pool for ever (pytorch 190348); before 2.13 it also believes that the capture
        goes on (180395), and memory that other streams have used is never free again."""
        torch.cuda.set_stream(stream)
        assert self.pool is not None
        device, pool = stream.device_index, self.pool
        with suppress(RuntimeError):  # it is over
            torch._C._cuda_endAllocateToPool(device, pool.id)
        torch._C._cuda_clearCublasWorkspaces()  # those of the side stream lie in the pool
        graph.reset()
        self.kinds.clear()
        gc.collect()
        while pool.use_count() > 1:  # `pool` itself is the last user
            torch._C._cuda_releasePool(device, pool.id)

    def _record(
        self,
        kind: Graph,
        graph: torch.cuda.CUDAGraph,
        batches: Sequence[Batch],
        context: StepContext,
        work: Callable[..., None],
    ) -> None:
        """Capture the step. Nothing is computed yet."""
        assert self.pool is not None
        meters, pool = self.meters, cast(Any, self.pool.id)
        clone = partial(torch.clone, memory_format=torch.preserve_format)
        copies = [Batch(mapped(clone, b.data), [*b.ids], b.keys.clone()) for b in batches]
        outside, meters.entries = meters.entries, []
        try:
            torch.cuda.synchronize()
            used = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
            self.step_bytes = max(self.step_bytes, used)
            with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                work(copies, context)
                kind.values = stacked(meters.entries)
            kind.metrics = tuple(meters.entries)
        finally:
            meters.entries = outside
            self.forget_gradients()
        kind.graph, kind.inputs = graph, tuple(tensors(copies))

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        self.drop()
        torch.cuda.empty_cache()
        self.say(f"{REFUSED}{reason}")


def tensors(batches: Sequence[Batch]) -> list[Tensor]:
    return [tensor for batch in batches for tensor in (*tensors_in(batch.data), batch.keys)]

"""The stream of data: a keyed order without memory, dealt to processes, loaded by workers.

    position ─ plan ─> requests of one global batch ─ dealt ─> micro-batches of this process
             ─ workers ─> keyed samples, collated ─> device

The position is one integer, the samples consumed over all processes. Nothing else is saved.
"""

import ctypes
import itertools
import signal
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from quintet.engine.errors import RunError
from quintet.engine.keys import Key, Permutation, fold, seed_globals
from quintet.engine.task import Batch
from quintet.engine.world import World

TRIES = 16
PR_SET_PDEATHSIG = 1
DAMAGE = (OSError, ValueError, EOFError)


class Request(NamedTuple):
    """One sample of the data set, in its turn of one epoch."""

    epoch: int
    sample: int


class Plan(Protocol):
    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        """The next `count` micro-batches of the global order from `position` on."""
        ...


class CountPlan:
    """Micro-batches of equal count. Epochs are concatenated: there is no short batch."""

    def __init__(self, size: int, seed: int, batch_size: int):
        self.size, self.seed, self.batch_size = size, seed, batch_size
        self._order = lru_cache(maxsize=2)(lambda epoch: Permutation(size, seed, epoch))

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        end = position + count * self.batch_size
        requests: list[Request] = []
        while position < end:
            epoch, first = divmod(position, self.size)
            taken = min(end - position, self.size - first)
            order = self._order(epoch).many(first, taken)
            requests.extend(Request(epoch, index) for index in order)
            position += taken
        width = self.batch_size
        return [requests[i : i + width] for i in range(0, len(requests), width)]


class LengthPlan:
    """Micro-batches whose padded length stays within a budget: count x longest <= budget.

    A pure function of seed, epoch, lengths and budget. Samples are sorted by length inside
    windows of the keyed order, cut, and the pieces are shuffled again by key.
    """

    def __init__(self, lengths: Sequence[int], seed: int, budget: int, window: int = 4096):
        if not lengths:
            raise RunError("the data set is empty; add data")
        longest = max(lengths)
        if longest > budget:
            raise RunError(
                f"a sample of length {longest} exceeds the budget of {budget} per micro-batch; "
                f"raise the budget to {longest} or more, or shorten the samples"
            )
        self.lengths, self.seed, self.budget, self.window = lengths, seed, budget, window
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        found: list[list[Request]] = []
        epoch, offset = divmod(position, len(self.lengths))
        while len(found) < count:
            batches, starts = self._epoch(epoch)
            first = bisect_right(starts, offset) - 1
            for batch in batches[first : first + count - len(found)]:
                found.append([Request(epoch, index) for index in batch])
            epoch, offset = epoch + 1, 0
        return found

    def _make_epoch(self, epoch: int) -> tuple[list[list[int]], list[int]]:
        order = Permutation(len(self.lengths), self.seed, epoch).many(0, len(self.lengths))
        cut: list[list[int]] = []
        for begin in range(0, len(order), self.window):
            window = sorted(order[begin : begin + self.window], key=self.lengths.__getitem__)
            cut.extend(self._cut(window))
        shuffle = Permutation(len(cut), self.seed, epoch, "micro-batches")
        batches = [cut[i] for i in shuffle.many(0, len(cut))]
        return batches, [0, *itertools.accumulate(map(len, batches))][:-1]

    def _cut(self, window: list[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in window:
            if batch and (len(batch) + 1) * self.lengths[index] > self.budget:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


@dataclass(frozen=True)
class Damaged:
    """A sample that could not be read, and why."""

    index: int
    name: str
    reason: str


class Loaded(NamedTuple):
    data: Any
    ids: list[int]
    keys: Tensor
    damaged: list[Damaged]


class Samples(Dataset[Any]):
    """Reads requests, keyed. A damaged sample is replaced by a keyed draw: batches stay full."""

    def __init__(self, source: Any, seed: int, augmented: bool = True):
        self.source, self.seed, self.augmented, self.size = source, seed, augmented, len(source)

    def __getitem__(self, request: Request) -> tuple[Any, int, Key, list[Damaged]]:
        key = Key(self.seed, *request)
        damaged: list[Damaged] = []
        for attempt in range(TRIES):
            index = request.sample
            if attempt:
                index = Permutation(self.size, key.fold("replacement"))(attempt % self.size)
            try:
                item = read_sample(self.source, index, key if self.augmented else None)
                return item, index, key, damaged
            except DAMAGE as error:
                damaged.append(Damaged(index, name_of(self.source, index), str(error)))
        return None, request.sample, key, damaged


def read_sample(source: Any, index: int, key: Key | None) -> Any:
    if hasattr(source, "keyed"):
        return source.keyed(index, key)
    seed_globals(key.fold("sample") if key else fold("fixed", index))
    return source[index]


def name_of(source: Any, index: int) -> str:
    return source.name(index) if hasattr(source, "name") else f"sample {index}"


class Collate:
    def __init__(self, collate: Callable[[list[Any]], Any]):
        self.collate = collate

    def __call__(self, read: list[tuple[Any, int, Key, list[Damaged]]]) -> Loaded:
        damaged = [note for *_, notes in read for note in notes]
        keys = torch.tensor([key.fold("device") for _, _, key, _ in read])
        lost = any(item is None for item, *_ in read)
        data = None if lost else self.collate([item for item, *_ in read])
        return Loaded(data, [index for _, index, _, _ in read], keys, damaged)


def leave_signals_to_main(_: int) -> None:
    """A launcher signals the whole group; workers must outlive the step that is under way, but
    not the process that they work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # torch's own watch takes seconds to notice a killed parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def loader(
    samples: Dataset[Any], batches: Any, collate: Any, workers: int, world: World
) -> DataLoader[Any]:
    return DataLoader(
        samples,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=world.device.type == "cuda",
        prefetch_factor=4 if workers else None,
        persistent_workers=workers > 0,
        # Workers share the data set's memory by forking; they never touch the device.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        worker_init_fn=leave_signals_to_main,
        generator=torch.Generator().manual_seed(0),  # or it would draw from the global one
    )


def stop_workers(batches: Any) -> None:
    """At once, and not when the last reference goes: a traceback may hold one to the end of the
    program, where python would wait for ever for workers that ignore its signal."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
        for worker in batches._workers:
            if worker.is_alive():
                worker.kill()


def place(loaded: Loaded, damaged: list[Damaged], world: World) -> Batch:
    damaged.extend(loaded.damaged)
    if loaded.data is None:
        last = loaded.damaged[-1]
        raise RunError(
            f"{TRIES} samples in a row could not be read; the last: {last.name}: {last.reason}"
        )
    keys = loaded.keys.to(world.device, non_blocking=True)
    return Batch(world.place(loaded.data), loaded.ids, keys)


class Stream:
    def __init__(
        self,
        source: Any,
        collate: Callable[[list[Any]], Any],
        plan: Plan,
        world: World,
        *,
        seed: int,
        accumulate: int,
        workers: int,
    ):
        self.samples = Samples(source, seed)
        self.collate = Collate(collate)
        self.plan, self.world, self.accumulate, self.workers = plan, world, accumulate, workers
        self.position = 0
        self.waited = 0.0
        self.damaged: list[Damaged] = []
        self.step_requests: list[Request] = []
        self._ahead: deque[list[Request]] = deque()
        self._batches: Iterator[Loaded] | None = None

    @property
    def epoch(self) -> float:
        return self.position / self.samples.size

    def seek(self, position: int) -> None:
        self.close()
        self.position = position

    def take(self, count: int) -> list[Batch]:
        """This process's micro-batches of one step; the position moves by the global batch."""
        begin = time.perf_counter()
        if self._batches is None:
            self._batches = iter(
                loader(self.samples, self._requests(), self.collate, self.workers, self.world)
            )
        loaded = [next(self._batches) for _ in range(count)]
        self.waited += time.perf_counter() - begin
        self.step_requests = self._ahead.popleft()
        self.position += len(self.step_requests)
        return [place(item, self.damaged, self.world) for item in loaded]

    def _requests(self) -> Iterator[list[Request]]:
        """Endless micro-batches of this process. Runs ahead of `take` by what workers prefetch."""
        position, size, rank = self.position, self.world.size, self.world.rank
        while True:
            step = self.plan.micro_batches(position, self.accumulate * size)
            self._ahead.append([request for batch in step for request in batch])
            position += len(self._ahead[-1])
            yield from (batch for turn, batch in enumerate(step) if turn % size == rank)

    def close(self) -> None:
        stop_workers(self._batches)
        self._batches = None
        self._ahead.clear()


class Fixed:
    """Held-out data: every sample once, in order, never augmented, spread over processes.

    Batches are cut before they are dealt, so one or several processes see the same batches. The
    last one may be short; filling it up would count a sample twice in every mean over a batch.
    """

    def __init__(self, source: Any, collate: Any, batch_size: int, world: World, workers: int):
        self.world, self.damaged = world, list[Damaged]()
        requests = [Request(0, index) for index in range(len(source))]
        self.batches = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
        self.loader = loader(
            Samples(source, seed=0, augmented=False),
            self.batches[world.rank :: world.size],
            Collate(collate),
            min(workers, 2),
            world,
        )

    def __iter__(self) -> Iterator[Batch]:
        for loaded in self.loader:
            yield place(loaded, self.damaged, self.world)

    def close(self) -> None:
        stop_workers(self.loader._iterator)

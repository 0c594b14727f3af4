"""The stream of data: a keyed order without memory, dealt to processes, loaded by workers.

    position ─ plan ─> requests of one global batch ─ dealt ─> micro-batches of this process
             ─ workers ─> keyed samples, collated ─> device

The position is one integer, the samples consumed over all processes. Nothing else is saved.
"""

import itertools
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
from torch.utils.data import Dataset

from quintet.engine.errors import RunError
from quintet.engine.keys import Key, Permutation, Windowed, fold, seed_globals
from quintet.engine.task import Batch
from quintet.engine.workers import DEATHS, PATIENCE, Died, Stuck, Watched, loader, stop_workers
from quintet.engine.world import World

TRIES = 16
NAMED = 64
"""Samples that are named where it can be any of those that were asked for."""
DAMAGE = (OSError, ValueError, EOFError)


class Request(NamedTuple):
    """One sample of the data set, in its turn of one epoch."""

    epoch: int
    sample: int


class Plan(Protocol):
    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        """The next `count` micro-batches of the global order from `position` on."""
        ...


Order = Callable[[int], Permutation | Windowed]
"""The order of the data in an epoch."""


def order_of(source: Any, seed: int) -> Order:
    """All of the data mixed; or, where it says how large a `window` it wants, neighbours read
    together and mixed within that."""
    size, window = len(source), getattr(source, "window", 0)
    if window:
        return lru_cache(maxsize=2)(lambda epoch: Windowed(size, window, seed, epoch))
    return lru_cache(maxsize=2)(lambda epoch: Permutation(size, seed, epoch))


class CountPlan:
    """Micro-batches of equal count. Epochs are concatenated: there is no short batch."""

    def __init__(self, size: int, seed: int, batch_size: int, order: Order | None = None):
        self.size, self.seed, self.batch_size = size, seed, batch_size
        self._order = order or order_of(range(size), seed)

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

    def __getitems__(self, requests: list[Request]) -> list[tuple[Any, int, Key, list[Damaged]]]:
        """A batch. A data set from afar is told of all of it first, and fetches it at once."""
        if hasattr(self.source, "prefetch"):
            self.source.prefetch([request.sample for request in requests])
        return [self[request] for request in requests]

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


def place(loaded: Loaded, damaged: list[Damaged], world: World) -> Batch:
    damaged.extend(loaded.damaged)
    if loaded.data is None:
        last = loaded.damaged[-1]
        reason = f"the last: {last.name}: {last.reason}"
        raise alone(RunError(f"{TRIES} samples in a row could not be read; {reason}"), world)
    keys = loaded.keys.to(world.device, non_blocking=True)
    return Batch(world.place(loaded.data), loaded.ids, keys)


def alone(error: RunError, world: World) -> RunError:
    """The command line lets the first process speak for all, which knows nothing of this."""
    if world.rank:
        sys.stderr.write(f"quintet: process {world.rank}: {error}\n")
    return error


def stuck_over(source: Any, requests: Sequence[Request], seconds: float) -> RunError:
    return RunError(
        f"no batch came for {seconds:g} seconds: a worker is stuck over one of "
        f"{_named(source, requests)}; look at these, or give --patience more seconds"
    )


def died_over(source: Any, requests: Sequence[Request]) -> RunError:
    return RunError(
        f"workers died {DEATHS + 1} times in a row over one of {_named(source, requests)}; look at "
        "these with --workers 0, or give fewer --workers if memory ran out"
    )


def _named(source: Any, requests: Sequence[Request]) -> str:
    names = [name_of(source, request.sample) for request in requests[:NAMED]]
    more = len(requests) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


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
        patience: float = PATIENCE,
    ):
        self.samples = Samples(source, seed)
        self.collate = Collate(collate)
        self.plan, self.world, self.accumulate, self.workers = plan, world, accumulate, workers
        self.patience = patience
        self.position = 0
        self.shift = 0
        """Added to the position where the plan is asked: another place is another order."""
        self.waited = 0.0
        self.damaged: list[Damaged] = []
        self.replaced = 0
        """How often a worker died and loading began anew, since this was last said."""
        self.step_requests: list[Request] = []
        self._ahead: deque[list[Request]] = deque()
        self._mine: deque[list[Request]] = deque()
        self._batches: Watched | None = None
        self._careful = False

    @property
    def epoch(self) -> float:
        return self.position / self.samples.size

    def seek(self, position: int) -> None:
        self.close()
        self.position = position

    def take(self, count: int) -> list[Batch]:
        """This process's micro-batches of one step; the position moves by the global batch."""
        begin = time.perf_counter()
        loaded = self._load(count)
        self.waited += time.perf_counter() - begin
        self.step_requests = self._ahead.popleft()
        self.position += len(self.step_requests)
        if self._careful:
            self.close()
        return [place(item, self.damaged, self.world) for item in loaded]

    def _load(self, count: int) -> list[Loaded]:
        """The step's micro-batches; all of them again where a worker died over one, at last by one
        worker that reads nothing ahead, so that what it dies over is known."""
        source, lost = self.samples.source, list[Request]()
        for deaths in range(DEATHS + 1):
            self._careful = deaths == DEATHS
            try:
                return [self._next() for _ in range(count)]
            except Stuck:
                stuck = stuck_over(source, self._in_flight(), self.patience)
                raise alone(stuck, self.world) from None
            except Died:
                self.replaced += 1
                lost = self._in_flight()
                self.seek(self.position)
        raise alone(died_over(source, lost), self.world)

    def _in_flight(self) -> list[Request]:
        return [request for batch in self._mine for request in batch]

    def _next(self) -> Loaded:
        if self._batches is None:
            workers, ahead = (1, 1) if self._careful else (self.workers, 4)
            requests = self._requests()
            batches = loader(self.samples, requests, self.collate, workers, self.world, ahead)
            self._batches = Watched(batches, self.patience)
        loaded = self._batches.next()
        self._mine.popleft()
        return loaded

    def _requests(self) -> Iterator[list[Request]]:
        """Endless micro-batches of this process. Runs ahead of `take` by what workers prefetch."""
        position, size, rank = self.position, self.world.size, self.world.rank
        while True:
            step = self.plan.micro_batches(position + self.shift, self.accumulate * size)
            self._ahead.append([request for batch in step for request in batch])
            position += len(self._ahead[-1])
            for batch in step[rank::size]:
                self._mine.append(batch)
                yield batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None
        self._ahead.clear()
        self._mine.clear()


class Fixed:
    """Held-out data: every sample once, in order, never augmented, spread over processes.

    Batches are cut before they are dealt, so one or several processes see the same batches. The
    last one may be short; filling it up would count a sample twice in every mean over a batch.
    """

    def __init__(
        self,
        source: Any,
        collate: Any,
        batch_size: int,
        world: World,
        workers: int,
        patience: float = PATIENCE,
    ):
        self.world, self.damaged = world, list[Damaged]()
        requests = [Request(0, index) for index in range(len(source))]
        self.batches = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
        self.mine = self.batches[world.rank :: world.size]
        self.samples, self.collate = Samples(source, seed=0, augmented=False), Collate(collate)
        self.workers, self.patience = min(workers, 8), patience
        self.replaced = 0
        self._whole: Any = None

    def __iter__(self) -> Iterator[Batch]:
        done = deaths = 0
        while done < len(self.mine):
            try:
                for loaded in self._from(done):
                    yield place(loaded, self.damaged, self.world)
                    done, deaths = done + 1, 0
            except Stuck:
                stuck = stuck_over(self.samples.source, self.mine[done], self.patience)
                raise alone(stuck, self.world) from None
            except Died:
                deaths, self.replaced = deaths + 1, self.replaced + 1
                if deaths > DEATHS:
                    died = died_over(self.samples.source, self.mine[done])
                    raise alone(died, self.world) from None

    def _from(self, done: int) -> Iterator[Loaded]:
        """Those of this process but the first few; workers stay for the next time if it is all."""
        mine = self.mine[done:]
        if done or self._whole is None:
            rest = loader(self.samples, mine, self.collate, self.workers, self.world)
        else:
            rest = self._whole
        self._whole = None if done else rest
        try:
            batches = Watched(rest, self.patience)
            try:
                for _ in mine:
                    yield batches.next()
            finally:
                batches.rest()
        except (Died, Stuck):
            self._whole = None
            raise
        finally:
            if self._whole is None:
                stop_workers(rest._iterator)

    def close(self) -> None:
        if self._whole is not None:
            stop_workers(self._whole._iterator)

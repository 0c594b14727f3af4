"""The stream of data: a keyed order without memory, dealt to processes, loaded by workers.

    position ─ plan ─> requests of one global batch ─ dealt ─> micro-batches of this process
             ─ workers ─> keyed samples, collated ─> device

The position is one integer, the samples consumed over all processes. Nothing else is saved.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet.engine.data.plans import Plan, Request
from quintet.engine.data.source import Prefetching, Source, as_source
from quintet.engine.data.workers import DEATHS, TIMEOUT, Died, Stuck, Watched, loader, stop_workers
from quintet.engine.errors import RunError
from quintet.engine.keys import Key, Permutation
from quintet.engine.machine.world import World
from quintet.engine.task import Batch

TRIES = 16
NAMED = 64
"""Samples that are named where it can be any of those that were asked for."""
DAMAGE = (OSError, ValueError, EOFError)


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
        self.source, self.seed, self.augmented = as_source(source), seed, augmented
        self.size = len(self.source)

    def __getitems__(self, requests: list[Request]) -> list[tuple[Any, int, Key, list[Damaged]]]:
        """A batch. A data set from afar is told of all of it first, and fetches it at once."""
        if isinstance(self.source, Prefetching):
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
                item = self.source.keyed(index, key if self.augmented else None)
                return item, index, key, damaged
            except DAMAGE as error:
                damaged.append(Damaged(index, self.source.name(index), str(error)))
        return None, request.sample, key, damaged


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


def stuck_over(source: Source, requests: Sequence[Request], seconds: float) -> RunError:
    return RunError(
        f"no batch came for {seconds:g} seconds: a worker is stuck over one of "
        f"{_named(source, requests)}; look at these, or give --data-timeout more seconds"
    )


def died_over(source: Source, requests: Sequence[Request]) -> RunError:
    return RunError(
        f"workers died {DEATHS + 1} times in a row over one of {_named(source, requests)}; look at "
        "these with --workers 0, or give fewer --workers if memory ran out"
    )


def _named(source: Source, requests: Sequence[Request]) -> str:
    names = [source.name(request.sample) for request in requests[:NAMED]]
    more = len(requests) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


class Stream:
    def __init__(
        self,
        source: Source,
        collate: Callable[[list[Any]], Any],
        plan: Plan,
        world: World,
        *,
        seed: int,
        accumulate: int,
        workers: int,
        timeout: float = TIMEOUT,
    ):
        self.samples = Samples(source, seed)
        self.collate = Collate(collate)
        self.plan, self.world, self.accumulate, self.workers = plan, world, accumulate, workers
        self.timeout = timeout
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
                stuck = stuck_over(source, self._in_flight(), self.timeout)
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
            self._batches = Watched(batches, self.timeout)
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
        source: Source,
        collate: Any,
        batch_size: int,
        world: World,
        workers: int,
        timeout: float = TIMEOUT,
    ):
        self.world, self.damaged = world, list[Damaged]()
        requests = [Request(0, index) for index in range(len(source))]
        self.batches = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
        self.mine = self.batches[world.rank :: world.size]
        self.samples, self.collate = Samples(source, seed=0, augmented=False), Collate(collate)
        self.workers, self.timeout = min(workers, 8), timeout
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
                stuck = stuck_over(self.samples.source, self.mine[done], self.timeout)
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
            batches = Watched(rest, self.timeout)
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

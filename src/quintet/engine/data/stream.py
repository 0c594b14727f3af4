"""The stream of training data: a keyed, stateless order, split by rank, loaded by workers.

The position is one integer, the samples consumed over all processes. Nothing else is saved.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet.engine.data.plans import Plan, Request
from quintet.engine.data.seat import Seat
from quintet.engine.data.source import Prefetching, Source, as_source
from quintet.engine.data.transfer import Transfer
from quintet.engine.data.workers import (
    MAX_DEATHS,
    TIMEOUT,
    Died,
    Stuck,
    WatchedLoader,
    loader,
    stop_workers,
)
from quintet.engine.errors import RunError
from quintet.engine.keys import Key, Permutation
from quintet.engine.task import Batch

TRIES = 16
MAX_NAMED = 64
"""Samples listed in an error that any of the requested ones may have caused."""
HELD_OUT = "validation samples (held out)"
DAMAGE = (OSError, ValueError, EOFError)


@dataclass(frozen=True)
class Damaged:
    """A sample that could not be read, with the reason."""

    index: int
    name: str
    reason: str


class Loaded(NamedTuple):
    data: Any
    ids: list[int]
    keys: Tensor
    damaged: list[Damaged]


class Samples(Dataset[Any]):
    """Reads keyed samples. A damaged one is replaced by a keyed draw, so batches stay full."""

    def __init__(self, source: Any, seed: int, augmented: bool = True):
        self.source, self.seed, self.augmented = as_source(source), seed, augmented
        self.size = len(self.source)

    def __getitems__(self, requests: list[Request]) -> list[tuple[Any, int, Key, list[Damaged]]]:
        """A batch; remote data is prefetched for all of it at once."""
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


def stacked(collate: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    """The batch of these items; RunError if their shapes differ."""
    try:
        return collate(items)
    except RuntimeError as error:
        if "stack expects each tensor" not in str(error):
            raise
        raise RunError(
            f"samples have different shapes ({error}): crop, resize or pad them to one, in the data"
            " set, or in collate_fn= of Trainer"
        ) from None


def collated(
    collate: Callable[[list[Any]], Any], samples: list[tuple[Any, int, Key, list[Damaged]]]
) -> Loaded:
    damaged = [each for *_, replaced in samples for each in replaced]
    keys = torch.tensor([key.fold("device") for _, _, key, _ in samples])
    unreadable = any(item is None for item, *_ in samples)
    data = None if unreadable else stacked(collate, [item for item, *_ in samples])
    ids = [index for _, index, _, _ in samples]
    return Loaded(data, ids, keys, damaged)


def to_device(
    loaded: Loaded, damaged: list[Damaged], transfer: Transfer, what: str = "samples"
) -> Batch:
    damaged.extend(loaded.damaged)
    if loaded.data is None:
        raise rank_error(unreadable_message(loaded.damaged[-1], what), transfer.world)
    data, keys = transfer((loaded.data, loaded.keys))
    return Batch(data, loaded.ids, keys)


def unreadable_message(last: Damaged, what: str) -> str:
    return f"{TRIES} {what} in a row could not be read; the last: {last.name}: {last.reason}"


def rank_error(message: str, world: Seat) -> RunError:
    """An error of this process alone: the command line prints only those of the main process."""
    if world.rank:
        sys.stderr.write(f"quintet: process {world.rank}: {message}\n")
    return RunError(message)


def loading_failed(
    source: Source, requests: Sequence[Request], world: Seat, timeout: float | None = None
) -> RunError:
    """Workers died on one of the requests, or were stuck on it for `timeout` seconds."""
    names = [source.name(request.sample) for request in requests[:MAX_NAMED]]
    more = len(requests) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    if timeout is None:
        reason = f"workers died {MAX_DEATHS + 1} times in a row"
        remedy = "inspect these with --workers 0, or lower --workers if memory ran out"
    else:
        reason = f"no batch came for {timeout:g} seconds: a worker is stuck"
        remedy = "inspect these, or raise --data-timeout"
    return rank_error(f"{reason} on one of {listed}; {remedy}", world)


class Stream:
    def __init__(
        self,
        source: Source,
        collate: Callable[[list[Any]], Any],
        plan: Plan,
        world: Seat,
        *,
        seed: int,
        accumulate: int,
        workers: int,
        timeout: float = TIMEOUT,
    ):
        self.samples = Samples(source, seed)
        self.collate = partial(collated, collate)
        self.plan, self.world, self.accumulate, self.workers = plan, world, accumulate, workers
        self.timeout, self.transfer = timeout, Transfer(world)
        self.position = 0
        self.shift = 0
        """Offset of the position in the plan, for a new order after a rollback."""
        self.waited = 0.0
        self.damaged: list[Damaged] = []
        self.replaced = 0
        """Restarts of the workers after a death, since the last report."""
        self.step_requests: list[Request] = []
        self._ahead: deque[list[Request]] = deque()
        self._pending: deque[list[Request]] = deque()
        self._batches: WatchedLoader | None = None
        self._isolating = False

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
        if self._isolating:
            self.close()
        self.transfer.begin_step()
        return [to_device(item, self.damaged, self.transfer) for item in loaded]

    def _load(self, count: int) -> list[Loaded]:
        """The micro-batches of a step, loaded again when a worker dies. The last attempt uses one
        worker without prefetching, so that the samples it dies on are known."""
        source, lost = self.samples.source, list[Request]()
        for deaths in range(MAX_DEATHS + 1):
            self._isolating = deaths == MAX_DEATHS
            try:
                return [self._next() for _ in range(count)]
            except Stuck:
                lost = self._in_flight()
                raise loading_failed(source, lost, self.world, self.timeout) from None
            except Died:
                self.replaced += 1
                lost = self._in_flight()
                self.seek(self.position)
        raise loading_failed(source, lost, self.world)

    def _in_flight(self) -> list[Request]:
        return [request for batch in self._pending for request in batch]

    def _next(self) -> Loaded:
        if self._batches is None:
            workers, ahead = (1, 1) if self._isolating else (self.workers, 4)
            requests = self._requests()
            batches = loader(self.samples, requests, self.collate, workers, self.world, ahead)
            self._batches = WatchedLoader(batches, self.timeout)
        loaded = self._batches.next()
        self._pending.popleft()
        return loaded

    def _requests(self) -> Iterator[list[Request]]:
        """Endless micro-batches of this process; ahead of `take` by what workers prefetch."""
        position, size, rank = self.position, self.world.size, self.world.rank
        while True:
            step = self.plan.micro_batches(position + self.shift, self.accumulate * size)
            self._ahead.append([request for batch in step for request in batch])
            position += len(self._ahead[-1])
            for batch in step[rank::size]:
                self._pending.append(batch)
                yield batch

    def requests_at(self, position: int) -> list[Request]:
        """The samples of the step that begins at a position."""
        count = self.accumulate * self.world.size
        return [r for batch in self.plan.micro_batches(position + self.shift, count) for r in batch]

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None
        self._ahead.clear()
        self._pending.clear()


class Fixed:
    """Validation data: every sample once, in order, not augmented, split by rank.

    Batches are formed before the split, so any number of processes sees the same batches. The last
    one may be short; padding it would count a sample twice in every mean over a batch.
    """

    def __init__(
        self,
        source: Source,
        collate: Any,
        batch_size: int,
        world: Seat,
        workers: int,
        timeout: float = TIMEOUT,
    ):
        self.world, self.damaged = world, list[Damaged]()
        requests = [Request(0, index) for index in range(len(source))]
        self.batches = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
        self.mine = self.batches[world.rank :: world.size]
        self.samples = Samples(source, seed=0, augmented=False)
        self.collate = partial(collated, collate)
        self.workers, self.timeout = min(workers, len(self.mine)), timeout
        self.transfer = Transfer(world)
        self.replaced = 0
        self._loader: Any = None

    def __iter__(self) -> Iterator[Batch]:
        source, done, deaths = self.samples.source, 0, 0
        while done < len(self.mine):
            try:
                for loaded in self._from(done):
                    self.transfer.begin_step()
                    yield to_device(loaded, self.damaged, self.transfer, HELD_OUT)
                    done, deaths = done + 1, 0
            except Stuck:
                raise loading_failed(source, self.mine[done], self.world, self.timeout) from None
            except Died:
                deaths, self.replaced = deaths + 1, self.replaced + 1
                if deaths > MAX_DEATHS:
                    raise loading_failed(source, self.mine[done], self.world) from None

    def require_readable(self) -> None:
        """At least one sample; damaged ones are met and named by the evaluation."""
        item, _, _, damaged = self.samples[Request(0, 0)]
        if item is None:
            raise RunError(f"{unreadable_message(damaged[-1], HELD_OUT)}; nothing was trained")

    def _from(self, done: int) -> Iterator[Loaded]:
        """Batches of this process after the first `done`. The workers of a complete pass are kept
        for the next one."""
        remaining = self.mine[done:]
        if done or self._loader is None:
            batches = loader(self.samples, remaining, self.collate, self.workers, self.world)
        else:
            batches = self._loader
        self._loader = None if done else batches
        try:
            watched = WatchedLoader(batches, self.timeout)
            try:
                for _ in remaining:
                    yield watched.next()
            finally:
                watched.unwatch()
        except (Died, Stuck):
            self._loader = None
            raise
        finally:
            if self._loader is None:
                stop_workers(batches._iterator)

    def close(self) -> None:
        if self._loader is not None:
            stop_workers(self._loader._iterator)

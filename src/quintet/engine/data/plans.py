"""Plans: which samples make up each micro-batch, as pure functions of seed, epoch and position."""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from quintet.engine.data.source import HasWindow
from quintet.engine.errors import RunError
from quintet.engine.keys import Permutation, Windowed


class Request(NamedTuple):
    """One sample of the data set in one epoch."""

    epoch: int
    sample: int


class Plan(Protocol):
    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        """The next `count` micro-batches of the global order from `position` on."""
        ...


Order = Callable[[int], Permutation | Windowed]
"""The order of the data in an epoch."""


def order_of(source: Any, seed: int) -> Order:
    """A shuffle of all data; of a source with a `window`, a shuffle within windows, so that
    neighbours are read together."""
    size = len(source)
    window = source.window if isinstance(source, HasWindow) else 0
    if window:
        return lru_cache(maxsize=2)(lambda epoch: Windowed(size, window, seed, epoch))
    return lru_cache(maxsize=2)(lambda epoch: Permutation(size, seed, epoch))


def requests_from(order: Order, size: int, position: int, count: int) -> list[Request]:
    """`count` requests of the concatenated epochs of `size` samples, from `position` on."""
    requests: list[Request] = []
    end = position + count
    while position < end:
        epoch, first = divmod(position, size)
        taken = min(end - position, size - first)
        requests.extend(Request(epoch, index) for index in order(epoch).many(first, taken))
        position += taken
    return requests


class CountPlan:
    """Micro-batches of equal count. Epochs are concatenated: there is no short batch."""

    def __init__(self, size: int, seed: int, batch_size: int, order: Order | None = None):
        self.size, self.seed, self.batch_size = size, seed, batch_size
        self._order = order or order_of(range(size), seed)

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        width = self.batch_size
        requests = requests_from(self._order, self.size, position, count * width)
        return [requests[i : i + width] for i in range(0, len(requests), width)]


class LengthPlan:
    """Global batches of samples of similar length: an equal count, or equal cost by length.

    A span of the keyed order is sorted by length and cut into global batches, which are shuffled
    by key. With a `batch_size`, the span is `window` global batches. With a `budget`, the padded
    length of a micro-batch, it is an epoch: batches of shorter samples have more of them, the
    remainder of each length joins the next longer one, and the last batch is filled from the next
    epoch. There are no more batch shapes than lengths, so round lengths up to a few buckets.

    With a `batch_size` and `even`, the span is dealt instead of cut: every micro-batch has samples
    of all lengths and nearly the same total, for batches whose samples are packed.

    A pure function of seed, lengths and the size of the global batch, however that is divided.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        seed: int,
        *,
        batch_size: int = 0,
        budget: int = 0,
        window: int = 16,
        even: bool = False,
        order: Order | None = None,
    ):
        if not lengths:
            raise RunError("the data set is empty; add data")
        longest = max(lengths)
        if not batch_size and longest > budget:
            raise RunError(
                f"a sample of length {longest} exceeds the budget of {budget} per micro-batch; "
                f"raise the budget to {longest} or more, or shorten the samples"
            )
        self.lengths, self.seed, self.batch_size = lengths, seed, batch_size
        self.budget, self.window, self.even = budget, window, even
        self._order = order or order_of(lengths, seed)
        self._span = lru_cache(maxsize=2)(self._make_span)

    def samples(self, length: int, count: int) -> int:
        """Samples of this length in a global batch of `count` micro-batches."""
        if self.batch_size:
            return self.batch_size * count
        samples = count * self.budget // length
        # A multiple of 8 divides evenly among processes; no micro-batch may be empty.
        return samples if samples < 16 else max(count, samples // 8 * 8)

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        _, starts = self._span(0, count)  # all spans have the same number of samples
        span, offset = divmod(position, starts[-1])
        batches, starts = self._span(span, count)
        batch = batches[bisect_right(starts, offset) - 1]
        if self.even:
            batch = self._spread(batch)
        cuts = [len(batch) * part // count for part in range(count + 1)]
        return [batch[begin:end] for begin, end in itertools.pairwise(cuts)]

    def _make_span(self, span: int, count: int) -> tuple[list[list[Request]], list[int]]:
        taken = self._span_size(count)
        requests = requests_from(self._order, len(self.lengths), span * taken, taken)
        if self.even:
            batches = self._dealt(requests, taken // (count * self.batch_size))
        else:
            batches = self._cut(requests, span, count)
        name = "buckets" if self.batch_size else "batches"
        order = Permutation(len(batches), self.seed, span, name).many(0, len(batches))
        batches = [batches[i] for i in order]
        return batches, [0, *itertools.accumulate(map(len, batches))]

    def _dealt(self, requests: list[Request], count: int) -> list[list[Request]]:
        """`count` batches of as many samples and nearly the same total length: in turn each gets
        the longest that is left, the batch that is shortest so far first."""
        length = lambda request: self.lengths[request.sample]
        requests = sorted(requests, key=length, reverse=True)
        batches, totals = [list[Request]() for _ in range(count)], [0] * count
        for begin in range(0, len(requests), count):
            turns = sorted(range(count), key=totals.__getitem__)
            for batch, request in zip(turns, requests[begin : begin + count]):
                batches[batch].append(request)
                totals[batch] += length(request)
        return batches

    def _spread(self, batch: list[Request]) -> list[Request]:
        """The same samples, the halves of which are even, and their halves: the parts of a global
        batch are even, whatever their number, and its order does not depend on it."""
        if len(batch) < 2:
            return batch
        first, second = self._dealt(batch, 2)
        return [*self._spread(first), *self._spread(second)]

    def _cut(self, requests: list[Request], span: int, count: int) -> list[list[Request]]:
        size = len(self.lengths)
        requests.sort(key=lambda request: self.lengths[request.sample])
        batches: list[list[Request]] = []
        waiting, taken = list[Request](), 0
        for length, group in itertools.groupby(requests, lambda r: self.lengths[r.sample]):
            waiting += group
            taken = self.samples(length, count)
            whole = len(waiting) // taken * taken
            batches += [waiting[i : i + taken] for i in range(0, whole, taken)]
            waiting = waiting[whole:]
        if waiting:
            more = (Request(span + 1 + i // size, i % size) for i in range(taken - len(waiting)))
            batches.append([*waiting, *more])
        return batches

    def _span_size(self, count: int) -> int:
        size, batch = len(self.lengths), count * self.batch_size
        if not batch:
            return size
        if size < batch:
            raise RunError(
                f"the data has {size} samples, but one global batch takes {batch}; "
                "lower --batch-size or add data"
            )
        # At most an epoch: a batch must not have the same sample twice.
        return min(self.window, size // batch) * batch

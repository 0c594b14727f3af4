"""Samples that are costly to make, made once: in memory that forked workers share.

Memory is used as rows are made, not before. A row depends on its number alone, so that two workers
that make the same one at the same time do no harm.

A row is complete once it has a length. Another process may see the two in any order, on ARM above
all, so that the length is set under a lock of the row, and a process takes the lock once before it
first reads the row. The system frees a lock of a process that is killed, unlike a semaphore.
"""

import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.engine.machine import memory

SHARE = 0.25
"""Share of the free memory for all processes of a machine; rows that need more are not kept."""
UNSHARED = SHARE / 16
"""The same for a process that is not forked: there is one for each worker."""
Row = npt.NDArray[Any]


class SharedRows:
    """Rows of numbers, each of at most its capacity."""

    def __init__(
        self,
        capacities: Sequence[int],
        dtype: npt.DTypeLike = np.int16,
        share: float = SHARE,
        partly: bool = False,
    ):
        """Where memory is short, no row is kept; with `partly`, the first ones are."""
        self.capacities, self.dtype, self.partly = capacities, np.dtype(dtype), partly
        starts = np.concatenate(([0], np.cumsum(capacities, dtype=np.int64)))
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        room = share * memory.available() / processes / self.dtype.itemsize
        if partly:
            starts = starts[starts <= room]
        size = int(starts[-1]) * self.dtype.itemsize
        self._values: Row | None = None
        if 0 < starts[-1] <= room:
            with suppress(OSError):  # the system promises no more than it has
                self._locks, path = tempfile.mkstemp()
                os.unlink(path)
                weakref.finalize(self, os.close, self._locks)
                fcntl.lockf(self._locks, fcntl.LOCK_SH, 1)  # some file systems have no locks
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1)
                self._starts = starts
                count = len(starts) - 1
                self._seen = np.zeros(count, bool)
                self._lengths = np.frombuffer(mmap.mmap(-1, count * 8), np.int64)
                self._values = np.frombuffer(mmap.mmap(-1, size), self.dtype)

    def __getstate__(self) -> Any:
        """A process that is not forked has rows of its own."""
        return self.capacities, self.dtype, UNSHARED, self.partly

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def keeps(self, index: int) -> bool:
        """Whether there is memory for the row."""
        return self._values is not None and index < len(self._lengths)

    def get(self, index: int) -> Row | None:
        """The row itself, read-only; None if it was not made yet."""
        if self._values is None or not self.keeps(index) or not self._lengths[index]:
            return None
        if not self._seen[index]:
            with self._locked(index, fcntl.LOCK_SH):
                self._seen[index] = True  # in this process alone
        start = self._starts[index]
        row = self._values[start : start + self._lengths[index]]
        row.setflags(write=False)
        return row

    def put(self, index: int, row: Row) -> Row:
        """Keep it, unless it is longer than its capacity."""
        if self.keeps(index) and len(row) <= self.capacities[index]:
            self.space(index)[: len(row)] = row
            self.complete(index, len(row))
        return row

    def space(self, index: int) -> Row:
        """Memory for the row, of its capacity, to be written before `complete`."""
        assert self._values is not None
        start = self._starts[index]
        return self._values[start : start + self.capacities[index]]

    def complete(self, index: int, length: int) -> None:
        """The row is the beginning of its space, from now on and for ever."""
        with self._locked(index, fcntl.LOCK_EX):
            self._lengths[index] = length

    @contextmanager
    def _locked(self, index: int, kind: int) -> Generator[None]:
        """A byte of an empty file stands for the row."""
        fcntl.lockf(self._locks, kind, 1, index)
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, index)

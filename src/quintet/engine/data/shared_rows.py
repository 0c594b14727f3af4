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
        self, capacities: Sequence[int], dtype: npt.DTypeLike = np.int16, share: float = SHARE
    ):
        self.capacities, self.dtype = capacities, np.dtype(dtype)
        starts = np.concatenate(([0], np.cumsum(capacities, dtype=np.int64)))
        size = int(starts[-1]) * self.dtype.itemsize
        self._values: Row | None = None
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if 0 < size * processes <= share * memory.available():
            with suppress(OSError):  # the system promises no more than it has
                self._locks, path = tempfile.mkstemp()
                os.unlink(path)
                weakref.finalize(self, os.close, self._locks)
                fcntl.lockf(self._locks, fcntl.LOCK_SH, 1)  # some file systems have no locks
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1)
                self._starts = starts
                self._seen = np.zeros(len(capacities), bool)
                self._lengths = np.frombuffer(mmap.mmap(-1, len(capacities) * 8), np.int64)
                self._values = np.frombuffer(mmap.mmap(-1, size), self.dtype)

    def __getstate__(self) -> Any:
        """A process that is not forked has rows of its own."""
        return self.capacities, self.dtype, UNSHARED

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def get(self, index: int) -> Row | None:
        """The row itself, read-only; None if it was not made yet."""
        if self._values is None or not self._lengths[index]:
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
        if self._values is not None and len(row) <= self.capacities[index]:
            start = self._starts[index]
            self._values[start : start + len(row)] = row
            with self._locked(index, fcntl.LOCK_EX):
                self._lengths[index] = len(row)
        return row

    @contextmanager
    def _locked(self, index: int, kind: int) -> Generator[None]:
        """A byte of an empty file stands for the row."""
        fcntl.lockf(self._locks, kind, 1, index)
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, index)

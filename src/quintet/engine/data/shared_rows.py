"""Samples that are costly to make, made once: in memory that forked workers share.

Memory is used as rows are made, not before. A row depends on its number alone, so that two workers
that make the same one at the same time do no harm.
"""

import mmap
import os
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.engine.machine import memory

SHARE = 0.25
"""Of the free memory, for all processes of a machine; where rows need more, none is kept."""
Row = npt.NDArray[np.int16]


class SharedRows:
    """Rows of up to `length` numbers."""

    def __init__(self, count: int, length: int):
        self.count, self.length = count, length
        size = count * length * 2
        self._values: npt.NDArray[np.int16] | None = None
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if 0 < size * processes <= SHARE * memory.available():
            with suppress(OSError):  # the system promises no more than it has
                self._lengths = np.frombuffer(mmap.mmap(-1, count * 8), np.int64)
                self._values = np.frombuffer(mmap.mmap(-1, size), np.int16).reshape(count, length)

    def __getstate__(self) -> Any:
        """A process that is not forked has rows of its own."""
        return self.count, self.length

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def get(self, index: int) -> Row | None:
        """A copy of the row; None if it was not made yet."""
        if self._values is None or not self._lengths[index]:
            return None
        return self._values[index, : self._lengths[index]].copy()

    def put(self, index: int, row: Row) -> Row:
        if self._values is not None:
            self._values[index, : len(row)] = row
            self._lengths[index] = len(row)  # last: a row with a length is complete
        return row

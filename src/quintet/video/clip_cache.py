"""A cache of short videos, decoded as a whole at the size from which crops are resampled.

Decoding three seconds takes about as long as decoding and resampling one window of them, after
which windows at any place and rate are copied from memory. They equal decoded ones, so that it does
not matter for which videos there is enough memory.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quintet.engine.data.shared_rows import Row, SharedRows
from quintet.media.clips.whole import read_whole
from quintet.media.clips.windows import Caps, ClipInfo, Whole

_FACTS = 8
"""Numbers that are kept with the times of the frames."""


class ClipCache:
    """Videos of a folder, as many as fit into the memory that workers share."""

    def __init__(self, sizes: Sequence[int], at_least: int, caps: Caps) -> None:
        """`sizes` are those of `whole_size`; with 0, a video is not kept."""
        capacities = [size and size + 8 * _FACTS for size in sizes]
        self._rows = SharedRows(capacities, np.uint8, partly=True)
        self.at_least, self.caps = at_least, caps

    def whole(self, index: int, path: Path) -> Whole | None:
        """The video for `read_clip`; None to decode the window."""
        row = self._rows.get(index)
        if row is not None:  # of one byte where the video is not to be decoded again
            return _unpacked(row) if len(row) > 1 else None
        if not self._rows.keeps(index) or not self._rows.capacities[index]:
            return None
        space = self._rows.space(index)
        whole = read_whole(path, space, at_least=self.at_least, caps=self.caps)
        length = 1 if whole is None else _append(whole, space)
        self._rows.complete(index, length)
        return whole if length > 1 else None


def _append(whole: Whole, space: Row) -> int:
    """Write times and facts behind the frames; the length of all, or 1 if there is no space."""
    facts = [whole.slack, *whole.frames.shape[1:3], *whole.info]
    numbers = np.array([*whole.times, *facts], np.float64).view(np.uint8)
    end = whole.frames.size + len(numbers)
    if end > len(space):
        return 1
    space[whole.frames.size : end] = numbers
    return end


def _unpacked(row: Row) -> Whole:
    slack, high, wide, count, seconds, rate, height, width = _numbers(row, len(row), _FACTS)
    end = len(row) - 8 * _FACTS
    times = _numbers(row, end, int(count))
    frames = row[: end - 8 * len(times)].reshape(int(count), int(high), int(wide), 3)
    info = ClipInfo(int(count), seconds, rate, int(height), int(width))
    return Whole(info, slack, times, frames)


def _numbers(row: Row, end: int, count: int) -> list[float]:
    return np.frombuffer(row[end - 8 * count : end].tobytes()).tolist()

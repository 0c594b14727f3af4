"""What can be said of files of any kind: which are the same, and how their sizes are spread."""

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

BARS = " ▏▎▍▌▋▊▉█"
WIDTH = 32
ROWS = 8


class Duplicates:
    """Files of the same content. A digest is taken only of files of the same size, in blocks."""

    def __init__(self) -> None:
        self._alone: dict[int, Path | None] = {}
        self._first: dict[bytes, Path] = {}
        self.groups: dict[Path, list[Path]] = {}
        """The first file of a content, and those after it."""

    def add(self, path: Path) -> None:
        try:
            size = path.stat().st_size
            if size not in self._alone:
                self._alone[size] = path
                return
            first, self._alone[size] = self._alone[size], None
            if first is not None:
                self._first.setdefault(_digest(first), first)
            earlier = self._first.setdefault(_digest(path), path)
        except OSError:
            return  # gone, or not readable: named as damaged elsewhere
        if earlier != path:
            self.groups.setdefault(earlier, []).append(path)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


def histogram(values: Sequence[float]) -> list[str]:
    """Rows of bars; evenly cut, or by factors where the largest is far from the smallest."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    edges = _edges(min(finite), max(finite))
    counts = [0] * (len(edges) - 1)
    for value in finite:
        inside = (row for row in range(len(counts)) if value < edges[row + 1])
        counts[next(inside, len(counts) - 1)] += 1
    names = [f"{_short(a)} – {_short(b)}" for a, b in pairwise(edges)]
    room = max(map(len, names))
    return [f"  {n:>{room}}  {_bar(c / max(counts))} {c:,}" for n, c in zip(names, counts)]


def _edges(low: float, high: float) -> list[float]:
    if low == high:
        return [low, high]
    if low > 0 and high / low > 50:
        return [low * (high / low) ** (row / ROWS) for row in range(ROWS + 1)]
    return [low + (high - low) * row / ROWS for row in range(ROWS + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _bar(share: float) -> str:
    """At least a sliver for what is there at all."""
    eighths = max(1, round(share * WIDTH * 8)) if share else 0
    return (BARS[8] * (eighths // 8) + BARS[eighths % 8].strip()).ljust(WIDTH)

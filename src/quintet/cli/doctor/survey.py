"""Duplicates among files, and histograms of their sizes."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from quintet.files import digest_of

BARS = " ▏▎▍▌▋▊▉█"
WIDTH = 32
ROWS = 8


class Duplicates:
    """Files with equal content. Only files of equal size are hashed."""

    def __init__(self) -> None:
        self._by_size: dict[int, Path | None] = {}
        self._first: dict[str, Path] = {}
        self.groups: dict[Path, list[Path]] = {}
        """First file with some content, and its copies."""

    def add(self, path: Path) -> None:
        try:
            size = path.stat().st_size
            if size not in self._by_size:
                self._by_size[size] = path
                return
            first, self._by_size[size] = self._by_size[size], None
            if first is not None:
                self._first.setdefault(digest_of(first), first)
            earlier = self._first.setdefault(digest_of(path), path)
        except OSError:
            return  # missing or unreadable: reported as damaged elsewhere
        if earlier != path:
            self.groups.setdefault(earlier, []).append(path)


def histogram(values: Sequence[float]) -> list[str]:
    """Rows of bars, with equal bins, or logarithmic ones for values of different magnitude."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    edges = _edges(min(finite), max(finite))
    counts = [0] * (len(edges) - 1)
    for value in finite:
        inside = (row for row in range(len(counts)) if value < edges[row + 1])
        counts[next(inside, len(counts) - 1)] += 1
    names = [f"{_short(a)} – {_short(b)}" for a, b in pairwise(edges)]
    width = max(map(len, names))
    return [f"  {n:>{width}}  {_bar(c / max(counts))} {c:,}" for n, c in zip(names, counts)]


def _edges(low: float, high: float) -> list[float]:
    if low == high:
        return [low, high]
    if low > 0 and high / low > 50:
        return [low * (high / low) ** (row / ROWS) for row in range(ROWS + 1)]
    return [low + (high - low) * row / ROWS for row in range(ROWS + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _bar(share: float) -> str:
    """A bar; a share above 0 gets at least an eighth of a block."""
    eighths = max(1, round(share * WIDTH * 8)) if share else 0
    return (BARS[8] * (eighths // 8) + BARS[eighths % 8].strip()).ljust(WIDTH)

"""Work on sounds and codes that are too long for the memory: windows that overlap.

parts of any length ─> windows of `size` positions and up to `margin` more on both sides ─> work
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    values: Tensor
    """(…, n), with margins, which end where the whole does."""
    start: int
    """First position without the margin before."""
    stop: int


def windows(parts: Iterable[Tensor], size: int, margin: int) -> Iterator[Window]:
    """Windows of a tensor that comes in parts along the last axis. Without their margins they lie
    side by side; only the last is shorter than `size`."""
    held: Tensor | None = None
    start = 0
    for part in parts:
        held = part if held is None else torch.cat((held, part), -1)
        while held.shape[-1] > start + size + margin:
            yield Window(held[..., : start + size + margin], start, start + size)
            drop = max(0, start + size - margin)
            held, start = held[..., drop:], start + size - drop
    while held is not None and held.shape[-1] > start:
        stop = min(held.shape[-1], start + size)
        yield Window(held[..., : stop + margin], start, stop)
        drop = max(0, stop - margin)
        held, start = held[..., drop:], stop - drop

"""Rotary position embeddings (RoFormer, arXiv 2104.09864) along one or more axes.

In two dimensions half of each head encodes the row and half the column, so any grid size works
without learned positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_PERIOD_1D, MAX_PERIOD_2D = 10_000.0, 100.0
"""Longest wavelengths, in positions: on a grid about the longest side of one of latents."""


class Rope(NamedTuple):
    cos: Tensor
    sin: Tensor


def axis_angles(length: int, pairs: int, device: torch.device) -> Tensor:
    """(length, pairs): rotation angle of each channel pair at each position."""
    freqs = MAX_PERIOD_2D ** -(torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    return torch.arange(length, device=device, dtype=torch.float32)[:, None] * freqs


def rope_grid(grid: Sequence[int], head_dim: int, device: torch.device) -> Rope:
    """(prod(grid), head_dim / 2) in row-major order. The last two axes are those of a picture; in
    three dimensions the first, time, has a quarter of the channel pairs. One axis is that of
    `rope_1d`."""
    pairs, axes = head_dim // 2, len(grid)
    if axes == 1:
        return rope_1d(torch.arange(grid[0], device=device), head_dim)
    side = pairs // 2 if axes == 2 else pairs * 3 // 8
    shares = (pairs - 2 * side, side, side)[-axes:]
    angles: list[Tensor] = []
    for axis, (size, share) in enumerate(zip(grid, shares)):
        shape = [size if other == axis else 1 for other in range(axes)]
        angles.append(axis_angles(size, share, device).view(*shape, -1).expand(*grid, -1))
    joined = torch.cat(angles, dim=-1).flatten(0, -2)
    return Rope(joined.cos(), joined.sin())


def rope_1d(positions: Tensor, head_dim: int) -> Rope:
    """(positions, head_dim / 2) cosines and sines; `positions` stays on its device."""
    pairs = head_dim // 2
    exponents = torch.arange(pairs, device=positions.device, dtype=torch.float32) / pairs
    angles = positions.float()[:, None] * MAX_PERIOD_1D**-exponents
    return Rope(angles.cos(), angles.sin())


def apply_rope(heads: Tensor, rope: Rope) -> Tensor:
    """Rotate (..., positions, head_dim); channel i pairs with channel i + head_dim / 2."""
    a, b = heads.chunk(2, dim=-1)
    return torch.cat((a * rope.cos - b * rope.sin, b * rope.cos + a * rope.sin), dim=-1)

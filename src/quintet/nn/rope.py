"""Rotary position embeddings (RoFormer, arXiv 2104.09864) along one or more axes.

In two dimensions half of each head encodes the row and half the column, so any grid size works
without learned positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_PERIOD_2D = 100.0
"""Longest wavelength, in positions: about the longest side of a latent grid."""


class Rope(NamedTuple):
    cos: Tensor
    sin: Tensor


def axis_angles(length: int, pairs: int, device: torch.device) -> Tensor:
    """(length, pairs): rotation angle of each channel pair at each position."""
    freqs = MAX_PERIOD_2D ** -(torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    return torch.arange(length, device=device, dtype=torch.float32)[:, None] * freqs


def rope_2d(height: int, width: int, head_dim: int, device: torch.device) -> Rope:
    """(height * width, head_dim / 2) cosines and sines in row-major order."""
    pairs = head_dim // 4
    rows = axis_angles(height, pairs, device)[:, None].expand(-1, width, -1)
    columns = axis_angles(width, pairs, device)[None].expand(height, -1, -1)
    angles = torch.cat((rows, columns), dim=-1).flatten(0, 1)
    return Rope(angles.cos(), angles.sin())


def rope_grid(grid: Sequence[int], head_dim: int, device: torch.device) -> Rope:
    """(prod(grid), head_dim / 2) in row-major order. The last two axes are those of a picture; in
    three dimensions the first, time, has a quarter of the channel pairs."""
    if len(grid) == 2:
        return rope_2d(grid[0], grid[1], head_dim, device)
    frames, height, width = grid
    pairs = head_dim // 2
    shares = (pairs - 2 * (pairs * 3 // 8), pairs * 3 // 8, pairs * 3 // 8)
    angles = [axis_angles(size, share, device) for size, share in zip(grid, shares)]
    times = angles[0][:, None, None].expand(-1, height, width, -1)
    rows = angles[1][None, :, None].expand(frames, -1, width, -1)
    columns = angles[2][None, None].expand(frames, height, -1, -1)
    joined = torch.cat((times, rows, columns), dim=-1).flatten(0, 2)
    return Rope(joined.cos(), joined.sin())


def rope_1d(positions: Tensor, head_dim: int, max_period: float = 10_000.0) -> Rope:
    """(positions, head_dim / 2) cosines and sines; `positions` stays on its device."""
    pairs = head_dim // 2
    exponents = torch.arange(pairs, device=positions.device, dtype=torch.float32) / pairs
    angles = positions.float()[:, None] * max_period**-exponents
    return Rope(angles.cos(), angles.sin())


def apply_rope(heads: Tensor, rope: Rope) -> Tensor:
    """Rotate (..., positions, head_dim); channel i pairs with channel i + head_dim / 2."""
    a, b = heads.chunk(2, dim=-1)
    return torch.cat((a * rope.cos - b * rope.sin, b * rope.cos + a * rope.sin), dim=-1)

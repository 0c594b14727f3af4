"""Rotary positions (RoFormer, arXiv 2104.09864) along the two axes of a picture.

Half of each head turns with the row and half with the column, so any size works and nothing is
learned.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LONGEST = 100.0
"""Wave length, in positions, of the slowest turn: about the longest side of a grid of latents."""


class Rotation(NamedTuple):
    cos: Tensor
    sin: Tensor


def axis_angles(length: int, pairs: int, device: torch.device) -> Tensor:
    """(length, pairs): how far each pair of channels has turned at each position."""
    speed = LONGEST ** -(torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    return torch.arange(length, device=device, dtype=torch.float32)[:, None] * speed


def picture_rotation(height: int, width: int, head_dim: int, device: torch.device) -> Rotation:
    """(height * width, head_dim / 2) cosines and sines, rows first."""
    pairs = head_dim // 4
    rows = axis_angles(height, pairs, device)[:, None].expand(-1, width, -1)
    columns = axis_angles(width, pairs, device)[None].expand(height, -1, -1)
    angles = torch.cat((rows, columns), dim=-1).flatten(0, 1)
    return Rotation(angles.cos(), angles.sin())


def rotate_pairs(heads: Tensor, where: Rotation) -> Tensor:
    """(..., positions, head_dim): channel i turns with channel i + head_dim / 2."""
    a, b = heads.chunk(2, dim=-1)
    return torch.cat((a * where.cos - b * where.sin, b * where.cos + a * where.sin), dim=-1)


def line_rotation(positions: Tensor, head_dim: int, longest: float = 10_000.0) -> Rotation:
    """(positions, head_dim / 2) along one axis; the positions may live on the device."""
    pairs = head_dim // 2
    steps = torch.arange(pairs, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * longest ** -(steps / pairs)
    return Rotation(angles.cos(), angles.sin())

"""Finite scalar quantisation (arXiv 2309.15505): round a few bounded numbers; no codebook to learn.

Here the L cells of a dimension are equally wide in (-1, 1) and a code is the centre of its cell,
which treats even and odd L alike.

A young encoder sends a constant, and then brightness, to every dimension alike, and most codes stay
unused. A small term holds the dimensions apart. It is a mean over the positions of one
call: with accumulation it is the mean of the micro-batches' terms, not that of the whole batch.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.nn.quantise import (
    ProjectIn,
    ProjectOut,
    Quantised,
    straight_through,
    without_autocast,
)

UNIFORM = 0.8
"""tanh(0.8 z) is nearly uniform for a standard normal z, so all cells are in use from the start."""


def spread_loss(soft: Tensor) -> Tensor:
    """How far numbers (..., d) in -1..1 are from independent and uniform, to second order.

    Such numbers have mean zero and a covariance of one third of the identity.
    """
    rows = soft.flatten(0, -2)
    mean = rows.mean(0)
    covariance = (rows - mean).T @ (rows - mean) / rows.shape[0]
    identity = torch.eye(rows.shape[1], device=rows.device, dtype=rows.dtype)
    return ((3 * covariance - identity).square().sum() + 3 * mean.square().sum()) / rows.shape[1]


class FSQ(nn.Module):
    """Rounds a projection of the latents to `levels[i]` cells in dimension i."""

    levels: Tensor
    places: Tensor

    def __init__(self, dim: int, levels: Sequence[int], *, spread_weight: float = 0.05) -> None:
        super().__init__()
        self.spread_weight = spread_weight
        if not levels or min(levels) < 2:
            raise ValueError(f"levels must be at least 2 each, not {tuple(levels)}")
        self.codes = math.prod(levels)
        self.project_in = ProjectIn(dim, len(levels))
        self.project_out = ProjectOut(len(levels), dim)
        places = [math.prod(levels[:i]) for i in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("places", torch.tensor(places), persistent=False)

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            soft = self.bounded(latents)
            digits = self.digits(soft)
            values = self.project_out(straight_through(self.centres(digits), soft))
            loss = self.spread_weight * spread_loss(soft) if self.training else soft.new_zeros(())
        return Quantised(values, self.join(digits), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.join(self.digits(self.bounded(latents)))

    def ids_to_values(self, ids: Tensor) -> Tensor:
        digits = ids[..., None] // self.places % self.levels
        with without_autocast(ids):
            return self.project_out(self.centres(digits.to(self.project_out.weight.dtype)))

    def bounded(self, latents: Tensor) -> Tensor:
        return torch.tanh(UNIFORM * self.project_in(latents))

    def digits(self, soft: Tensor) -> Tensor:
        """The cell of each number; the clamp catches a tanh that rounds to one."""
        cells = torch.floor((soft.detach() + 1) * 0.5 * self.levels)
        return cells.clamp_min(0).minimum(self.levels - 1)

    def centres(self, digits: Tensor) -> Tensor:
        return (2 * digits + 1) / self.levels - 1

    def join(self, digits: Tensor) -> Tensor:
        return (digits.long() * self.places).sum(-1)

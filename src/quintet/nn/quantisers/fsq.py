"""Finite scalar quantisation (FSQ, arXiv 2309.15505): bounded scalars, rounded; no codebook.

Here the L levels of a dimension are equally wide cells of (-1, 1), and a code is the centre of its
cell. Even and odd L need no separate treatment.

Early in training all dimensions carry the same signal (a constant, then brightness), and most codes
stay unused. A small decorrelation loss prevents this. It is a statistic of the positions of one
call: with gradient accumulation it is averaged over micro-batches, not taken over the full batch.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from quintet.nn.precision import matmul, without_autocast
from quintet.nn.quantisers.base import (
    DiscreteBottleneck,
    ProjectIn,
    ProjectOut,
    Quantised,
    straight_through,
)

TANH_SCALE = 0.8
"""tanh(0.8 z) is nearly uniform for a standard normal z, so all cells are used from the start."""


def decorrelation_loss(bounded: Tensor) -> Tensor:
    """Distance of (..., d) in -1..1 from independent and uniform, in the first two moments.

    The target is a zero mean and a covariance of one third of the identity.
    """
    rows = bounded.flatten(0, -2)
    mean = rows.mean(0)
    covariance = matmul((rows - mean).T, rows - mean) / rows.shape[0]
    identity = torch.eye(rows.shape[1], device=rows.device, dtype=rows.dtype)
    return ((3 * covariance - identity).square().sum() + 3 * mean.square().sum()) / rows.shape[1]


class FSQ(DiscreteBottleneck):
    """Rounds dimension i of a projection of the latents to `levels[i]` levels."""

    levels: Tensor
    basis: Tensor

    def __init__(
        self, dim: int, levels: Sequence[int], *, decorrelation_weight: float = 0.05
    ) -> None:
        super().__init__()
        self.decorrelation_weight = decorrelation_weight
        if not levels or min(levels) < 2:
            raise ValueError(f"levels must be at least 2 each, not {tuple(levels)}")
        self.codebook_size = math.prod(levels)
        self.project_in = ProjectIn(dim, len(levels))
        self.project_out = ProjectOut(len(levels), dim)
        basis = [math.prod(levels[:i]) for i in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("basis", torch.tensor(basis), persistent=False)

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            bounded = self.bound(latents)
            indices = self.level_indices(bounded)
            values = self.project_out(straight_through(self.cell_centres(indices), bounded))
            loss = bounded.new_zeros(())
            if self.training:
                loss = self.decorrelation_weight * decorrelation_loss(bounded)
        return Quantised(values, self.indices_to_ids(indices), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.indices_to_ids(self.level_indices(self.bound(latents)))

    def ids_to_values(self, ids: Tensor) -> Tensor:
        indices = ids[..., None] // self.basis % self.levels
        with without_autocast(ids):
            return self.project_out(self.cell_centres(indices.to(self.project_out.weight.dtype)))

    def bound(self, latents: Tensor) -> Tensor:
        return torch.tanh(TANH_SCALE * self.project_in(latents))

    def level_indices(self, bounded: Tensor) -> Tensor:
        """The cell of each scalar; the clamp is for a tanh that rounds to one."""
        indices = torch.floor((bounded.detach() + 1) * 0.5 * self.levels)
        return indices.clamp_min(0).minimum(self.levels - 1)

    def cell_centres(self, indices: Tensor) -> Tensor:
        return (2 * indices + 1) / self.levels - 1

    def indices_to_ids(self, indices: Tensor) -> Tensor:
        digits = indices.long() * self.basis
        if torch.compiler.is_exporting():  # onnxruntime would sum them as floating-point numbers
            return reduce(torch.add, digits.unbind(-1))
        return digits.sum(-1)

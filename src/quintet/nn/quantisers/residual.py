"""Residual quantisation (SoundStream, arXiv 2107.03312): each level quantises the last residual.

Like the single-level quantisers, both modules take latents (b, c, ...) and return values of the
same shape and a 0-dim loss; ids are (b, ..., depth), coarsest level first.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.quantisers.base import (
    DiscreteBottleneck,
    Quantised,
    channels_first,
    channels_last,
    straight_through,
)
from quintet.nn.statistics import CommitContext, Commits


class ResidualFSQ(nn.Module):
    """Finite scalar quantisation (arXiv 2309.15505) of scalars in -1..1, digit by digit.

    Without norm, projection or parameters: dimension i has levels[i] equal cells, each divided into
    levels[i] cells, and so on. `depth` levels give levels[i] ** depth steps, and the quantisation
    error is at most half a step.
    """

    levels: Tensor
    basis: Tensor

    def __init__(self, levels: Sequence[int], depth: int = 2) -> None:
        super().__init__()
        if not levels or min(levels) < 2 or depth < 1:
            raise ValueError(
                f"levels must be at least 2 each and depth 1, not {tuple(levels)} and {depth}"
            )
        self.depth, self.codebook_size = depth, math.prod(levels)
        self.steps = tuple(level**depth for level in levels)
        basis = [math.prod(levels[:i]) for i in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("basis", torch.tensor(basis), persistent=False)

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            soft = full_precision(channels_last(latents))
            digits = self.digits(soft.detach())
            values = straight_through(self.centres(digits, soft.dtype), soft)
        return Quantised(channels_first(values), self.digits_to_ids(digits), values.new_zeros(()))

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.digits_to_ids(self.digits(full_precision(channels_last(latents))))

    def ids_to_values(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        digits = ids[..., None] // self.basis % self.levels
        with without_autocast(ids):
            return channels_first(self.centres(digits, dtype))

    def digits(self, soft: Tensor) -> Tensor:
        """(..., depth, c): the cell at each level; values out of range take the outermost."""
        digits: list[Tensor] = []
        for _ in range(self.depth):
            cells = torch.floor((soft + 1) * 0.5 * self.levels)
            cells = cells.clamp_min(0).minimum(self.levels - 1)
            soft = (soft - self.centre(cells)) * self.levels
            digits.append(cells)
        return torch.stack(digits, -2).long()

    def centre(self, cells: Tensor) -> Tensor:
        return (2 * cells + 1) / self.levels - 1

    def centres(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """Joins the digits as integers first, so that a value is rounded once."""
        number = torch.zeros_like(digits[..., 0, :])
        for digit in digits.unbind(-2):
            number = number * self.levels + digit
        return (2 * number + 1).to(dtype) / self.levels**self.depth - 1

    def digits_to_ids(self, digits: Tensor) -> Tensor:
        return (digits * self.basis).sum(-1)


class ResidualQuantiser(nn.Module):
    """A sequence of quantisers, each with its own projections; their values are summed."""

    def __init__(self, quantisers: Sequence[nn.Module]) -> None:
        super().__init__()
        if not quantisers:
            raise ValueError("a residual quantiser needs at least one quantiser")
        self.quantisers = nn.ModuleList(quantisers)
        self.depth = len(quantisers)
        self.codebook_size = max(quantiser.codebook_size for quantiser in self.levels())
        for level, quantiser in enumerate(self.levels()):
            quantiser.level = level

    def levels(self) -> list[DiscreteBottleneck]:
        return [cast(DiscreteBottleneck, quantiser) for quantiser in self.quantisers]

    def forward(self, latents: Tensor) -> Quantised:
        residual = full_precision(latents)
        values, loss = torch.zeros_like(residual), residual.new_zeros(())
        ids: list[Tensor] = []
        for quantiser in self.levels():
            quantised = quantiser(residual)
            # Detached: each level is trained on its own error, not on the residual it passes on.
            residual = residual - quantised.values.detach()
            values, loss = values + quantised.values, loss + quantised.loss / self.depth
            ids.append(quantised.ids)
        return Quantised(values, torch.stack(ids, -1), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        residual, ids = full_precision(latents), list[Tensor]()
        for quantiser in self.levels():
            ids.append(quantiser.to_ids(residual))
            residual = residual - quantiser.ids_to_values(ids[-1])
        return torch.stack(ids, -1)

    def ids_to_values(self, ids: Tensor) -> Tensor:
        values = [q.ids_to_values(level) for q, level in zip(self.levels(), ids.unbind(-1))]
        total = torch.zeros_like(values[0])
        for value in values:
            total = total + value
        return total

    def commit(self, context: CommitContext) -> None:
        for quantiser in self.quantisers:
            if isinstance(quantiser, Commits):
                quantiser.commit(context)

"""Residual quantisation (SoundStream, arXiv 2107.03312): each level rounds what the last one left.

Both modules here take latents (b, c, ...) like the quantisers of one level, and return values of
the same shape, ids (b, ..., depth) with the coarsest level first, and a 0-dim loss.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from quintet.nn.quantise import (
    Quantised,
    Quantiser,
    channels_to_end,
    channels_to_front,
    full_precision,
    straight_through,
    without_autocast,
)
from quintet.nn.statistics import CommitContext, Commits


class ResidualFSQ(nn.Module):
    """Finite scalar quantisation (arXiv 2309.15505) of numbers in -1..1, digit by digit.

    There is no norm, no projection and nothing to learn: dimension i has levels[i] equal cells, a
    cell has levels[i] cells of its own, and so on. So `depth` levels cut it into levels[i] ** depth
    steps, and a value is off by half of one of them at most.
    """

    levels: Tensor
    places: Tensor

    def __init__(self, levels: Sequence[int], depth: int = 2) -> None:
        super().__init__()
        if not levels or min(levels) < 2 or depth < 1:
            raise ValueError(
                f"levels must be at least 2 each and depth 1, not {tuple(levels)} and {depth}"
            )
        self.depth, self.codes = depth, math.prod(levels)
        self.steps = tuple(level**depth for level in levels)
        places = [math.prod(levels[:i]) for i in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("places", torch.tensor(places), persistent=False)

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            soft = full_precision(channels_to_end(latents))
            digits = self.digits(soft.detach())
            values = straight_through(self.centres(digits, soft.dtype), soft)
        return Quantised(channels_to_front(values), self.join(digits), values.new_zeros(()))

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.join(self.digits(full_precision(channels_to_end(latents))))

    def ids_to_values(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        digits = ids[..., None] // self.places % self.levels
        with without_autocast(ids):
            return channels_to_front(self.centres(digits, dtype))

    def digits(self, soft: Tensor) -> Tensor:
        """(..., depth, c): the cell of each level; what lies outside goes to the outermost."""
        found: list[Tensor] = []
        for _ in range(self.depth):
            cells = torch.floor((soft + 1) * 0.5 * self.levels)
            cells = cells.clamp_min(0).minimum(self.levels - 1)
            soft = (soft - self.centre(cells)) * self.levels
            found.append(cells)
        return torch.stack(found, -2).long()

    def centre(self, cells: Tensor) -> Tensor:
        return (2 * cells + 1) / self.levels - 1

    def centres(self, digits: Tensor, dtype: torch.dtype) -> Tensor:
        """One number from all digits first, so that a value is rounded once."""
        number = torch.zeros_like(digits[..., 0, :])
        for digit in digits.unbind(-2):
            number = number * self.levels + digit
        return (2 * number + 1).to(dtype) / self.levels**self.depth - 1

    def join(self, digits: Tensor) -> Tensor:
        return (digits * self.places).sum(-1)


class Residual(nn.Module):
    """Quantisers in a row, with projections of their own: the sum of their values is the value."""

    def __init__(self, quantisers: Sequence[nn.Module]) -> None:
        super().__init__()
        if not quantisers:
            raise ValueError("a residual quantiser needs at least one quantiser")
        self.quantisers = nn.ModuleList(quantisers)
        self.depth = len(quantisers)
        self.codes = max(quantiser.codes for quantiser in self.levels())

    def levels(self) -> list[Quantiser]:
        return [cast(Quantiser, quantiser) for quantiser in self.quantisers]

    def forward(self, latents: Tensor) -> Quantised:
        rest = full_precision(latents)
        values, loss = torch.zeros_like(rest), rest.new_zeros(())
        ids: list[Tensor] = []
        for quantiser in self.levels():
            found = quantiser(rest)
            # Detached: each level answers for its own error, not for what it leaves to the next.
            rest = rest - found.values.detach()
            values, loss = values + found.values, loss + found.loss / self.depth
            ids.append(found.ids)
        return Quantised(values, torch.stack(ids, -1), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        rest, ids = full_precision(latents), list[Tensor]()
        for quantiser in self.levels():
            ids.append(quantiser.to_ids(rest))
            rest = rest - quantiser.ids_to_values(ids[-1])
        return torch.stack(ids, -1)

    def ids_to_values(self, ids: Tensor) -> Tensor:
        values = [q.ids_to_values(level) for q, level in zip(self.levels(), ids.unbind(-1))]
        total = torch.zeros_like(values[0])
        for value in values:
            total = total + value
        return total

    def commit(self, at: CommitContext) -> None:
        for quantiser in self.quantisers:
            if isinstance(quantiser, Commits):
                quantiser.commit(at)

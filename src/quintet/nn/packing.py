"""Samples of different lengths one after the other, without padding between them.

Shapes: b samples, r rows (the last may belong to no sample), n positions of a padded sample.

All that acts on single rows costs nothing for padding. Attention acts on padded samples: rows are
gathered before it and gathered back behind it, with shapes that do not depend on the lengths.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


def owners(lengths: Tensor, rows: int) -> Tensor:
    """(b,) lengths -> (rows,): the sample of each row; -1 behind the last sample."""
    ends = lengths.long().cumsum(0)
    row = torch.arange(rows, device=lengths.device)
    return torch.where(row < ends[-1], torch.searchsorted(ends, row, right=True), -1)


def sum_by_owner(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """(r,) -> (count,): the sum of each sample."""
    inside = torch.where(owner >= 0, values, 0)
    return values.new_zeros(count).index_add(0, owner.clamp_min(0), inside)


def mean_by_owner(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """(r,) -> (count,): the mean of each sample; 0 for one without rows."""
    totals = sum_by_owner(values, owner, count)
    return totals / sum_by_owner(torch.ones_like(values), owner, count).clamp_min(1)


def take(x: Tensor, index: Tensor) -> Tensor:
    """(m, ...) -> (k, ...): rows by index (k,), zero where it is negative."""
    mask = (index >= 0).view(-1, *[1] * (x.ndim - 1))
    return torch.where(mask, x.index_select(0, index.clamp_min(0)), x.new_zeros(()))


class _Take(torch.autograd.Function):
    """`take` with an index that takes no row twice: its gradient is `take` by the inverse index,
    where that of an index_select would scatter with atomic additions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return take(x, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return take(gradients[0], *ctx.saved_tensors), None, None


class Packing(NamedTuple):
    """Where the rows of each sample are."""

    owner: Tensor
    """(r,): sample of each row; -1 behind the last sample."""
    position: Tensor
    """(r,): position of each row in its sample; 0 behind the last sample."""
    row: Tensor
    """(b, n): row of each padded position; -1 in padding."""
    place: Tensor
    """(r,): the inverse: padded position of each row in (b n); -1 behind the last sample."""

    @classmethod
    def of(cls, lengths: Tensor, rows: int, width: int) -> "Packing":
        """Samples of `lengths` (b,) in `rows` rows; padded samples have `width` positions."""
        owner, starts = owners(lengths, rows), lengths.long().cumsum(0) - lengths
        position = torch.arange(rows, device=lengths.device) - starts[owner.clamp_min(0)]
        position = torch.where(owner >= 0, position, 0)
        inside = torch.arange(width, device=lengths.device)
        row = torch.where(inside < lengths[:, None], starts[:, None] + inside, -1)
        place = torch.where(owner >= 0, owner * width + position, -1)
        return cls(owner, position, row, place)

    def pad(self, x: Tensor) -> Tensor:
        """(r, ...) -> (b, n, ...), zero in padding."""
        padded: Any = _Take.apply(x, self.row.flatten(), self.place)
        return padded.unflatten(0, self.row.shape)

    def unpad(self, x: Tensor) -> Tensor:
        """(b, n, ...) -> (r, ...), zero behind the last sample."""
        rows: Any = _Take.apply(x.flatten(0, 1), self.place, self.row.flatten())
        return rows

    def pad_heads(self, heads: Tensor) -> Tensor:
        """(1, h, r, e) -> (b, h, n, e)."""
        return self.pad(heads[0].transpose(0, 1)).transpose(1, 2)

    def unpad_heads(self, heads: Tensor) -> Tensor:
        """(b, h, n, e) -> (1, h, r, e)."""
        return self.unpad(heads.transpose(1, 2)).transpose(0, 1)[None]

"""Kernel distances of two sets of features: squared maximum mean discrepancies, unbiased.

mean k(x, x') + mean k(y, y') - 2 mean k(x, y), over pairs of different rows of references x and
outputs y. The expected value is the same for any number of rows, unlike that of a Fréchet distance,
and 0 for two draws of one distribution: below 0 as often as above.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.judges.base import Array, SetJudge
from quintet.judges.frechet import rows_of

BLOCK = 2048
"""Rows whose kernel values with all others are in memory at once."""
Kernel = Callable[[Tensor, Tensor], Tensor]
"""(n, d), (m, d) -> (n, m)."""


def polynomial(a: Tensor, b: Tensor) -> Tensor:
    """That of KID (arXiv 1801.01401)."""
    return (a @ b.T / a.shape[1] + 1) ** 3


def gaussian(width: float) -> Kernel:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        return torch.exp(-squares.clamp_min(0) / (2 * width**2))

    return kernel


def median_distance(rows: Tensor) -> float:
    """Of all pairs of at most `BLOCK` rows, which are spread evenly over the set."""
    chosen = torch.linspace(0, len(rows) - 1, min(len(rows), BLOCK)).round().long()
    return float(torch.pdist(rows[chosen]).median())


def sums(kernel: Kernel, rows: Tensor, others: Tensor) -> Tensor:
    """(n,): the sum over the others of each row's kernel values."""
    return torch.cat([kernel(part, others).sum(1) for part in rows.split(BLOCK)])


def sums_of_others(kernel: Kernel, rows: Tensor) -> Tensor:
    """(n,): `sums` with all rows of the set but itself."""
    own = [kernel(part, part).diagonal() for part in rows.split(64)]
    return sums(kernel, rows, rows) - torch.cat(own)


def unbiased(
    references: Tensor, outputs: Tensor, lengths: Sequence[int], kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """The distance, and (g,) those without each of g samples, which have `lengths` rows each."""
    count, others = len(outputs), len(references)
    if min(count, others) < 2:
        raise RunError("a kernel distance needs at least 2 rows in each set")
    sizes = torch.tensor(lengths)
    owners = torch.arange(len(sizes)).repeat_interleave(sizes)
    within, across = sums_of_others(kernel, outputs), sums(kernel, outputs, references)
    by_sample = within.new_zeros(len(sizes))
    lost, met = (by_sample.index_add(0, owners, values) for values in (2 * within, across))
    for number, rows in enumerate(outputs.split(list(lengths))):
        if len(rows) > 1:  # pairs inside of a sample were counted twice
            lost[number] -= sums_of_others(kernel, rows).sum()
    fixed = sums_of_others(kernel, references).sum() / (others * (others - 1))

    def distance(pairs: Tensor, crossings: Tensor, kept: Tensor) -> Tensor:
        return fixed + pairs / (kept * (kept - 1)) - 2 * crossings / (others * kept)

    whole = distance(within.sum(), across.sum(), torch.tensor(count))
    return whole, distance(within.sum() - lost, across.sum() - met, count - sizes)


class KernelSets(SetJudge):
    """Features are (n, d), or (n, w, d) with rows of NaN where a sample has fewer."""

    better = "lower"
    unbiased = True
    scale: ClassVar[float] = 1.0

    @abstractmethod
    def kernel(self, references: Tensor) -> Kernel: ...

    def distance(self, references: Array, outputs: Array) -> float:
        return self.jackknife(references, outputs)[0]

    def distance_from(self, references: Array) -> Callable[[Array], float]:
        return partial(self.distance, references)

    def jackknife(self, references: Array, outputs: Array) -> tuple[float, Array]:
        first, second = (
            torch.from_numpy(rows_of(x) if x.ndim == 3 else x).double()
            for x in (references, outputs)
        )
        lengths = [1] * len(outputs)
        if outputs.ndim == 3:
            lengths = (~np.isnan(outputs).any(-1)).sum(1).tolist()
        value, left_out = unbiased(first, second, lengths, self.kernel(first))
        few = len(outputs) < 3 or len(second) - max(lengths) < 2
        return self.scale * float(value), self.scale * left_out.numpy()[: 0 if few else None]

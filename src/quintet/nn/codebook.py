"""Sizes of codebooks, and how much of one is used."""

from typing import NamedTuple

import torch
from torch import Tensor


class CodebookUse(NamedTuple):
    share: Tensor
    """Share of the codes that occur at all."""
    perplexity: Tensor
    """Exponential of the entropy of their frequencies: codes in use, had they all been equal."""


def codebook_use(ids: Tensor, size: int) -> CodebookUse:
    """How much of a codebook of this size the ids use; give it many ids for each code."""
    counts = torch.bincount(ids.flatten(), minlength=size).float()
    shares = counts / counts.sum()
    entropy = -torch.special.xlogy(shares, shares).sum()
    return CodebookUse((counts > 0).float().mean(), entropy.exp())


def levels_of(bits: int) -> tuple[int, ...]:
    """Powers of two, at most 8 each, whose product is exactly 2 ** bits."""
    count = -(-bits // 3)
    return tuple(2 ** (bits // count + (index < bits % count)) for index in range(count))

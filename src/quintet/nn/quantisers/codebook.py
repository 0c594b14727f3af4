"""Codebook usage."""

from typing import NamedTuple

import torch
from torch import Tensor


class CodebookUsage(NamedTuple):
    fraction: Tensor
    """Fraction of the codes that occur at least once."""
    perplexity: Tensor
    """Exponential of the entropy of the code frequencies: the effective number of codes."""


def codebook_usage(ids: Tensor, codebook_size: int) -> CodebookUsage:
    """Usage of a codebook by these ids; meaningful with many more ids than codes."""
    counts = torch.bincount(ids.flatten(), minlength=codebook_size).float()
    frequencies = counts / counts.sum()
    entropy = -torch.special.xlogy(frequencies, frequencies).sum()
    return CodebookUsage((counts > 0).float().mean(), entropy.exp())

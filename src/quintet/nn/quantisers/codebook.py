"""Codebook usage."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class CodebookUsage(NamedTuple):
    fraction: Tensor
    """Fraction of the codes that occur at least once."""
    perplexity: Tensor
    """Exponential of the entropy of the code frequencies: the effective number of codes."""
    coverage: Tensor
    """Distinct codes, relative to those of as many uniform draws: comparable for any count."""


def expected_usage(draws: int, codebook_size: int) -> float:
    """Fraction of a codebook that so many uniform draws use on average."""
    if codebook_size == 1:
        return float(draws > 0)
    return -math.expm1(draws * math.log1p(-1 / codebook_size))


def codebook_usage(ids: Tensor, codebook_size: int) -> CodebookUsage:
    """Fraction and perplexity need many more ids than codes, the coverage twenty or more."""
    counts = ids.unique(return_counts=True)[1]  # a table of all codes might not fit into memory
    frequencies = counts / ids.numel()
    entropy = -torch.special.xlogy(frequencies, frequencies).sum()
    fraction = frequencies.new_tensor(len(counts) / codebook_size)
    coverage = fraction / expected_usage(ids.numel(), codebook_size)
    return CodebookUsage(fraction, entropy.exp(), coverage)


def digit_usage(ids: Tensor, digits: Sequence[int]) -> CodebookUsage:
    """Mean usage of the digits, least significant first, each as a codebook of its own."""
    usages: list[CodebookUsage] = []
    for base in digits:
        usages.append(codebook_usage(ids % base, base))
        ids = ids // base
    return CodebookUsage(*(torch.stack(values).mean() for values in zip(*usages, strict=True)))

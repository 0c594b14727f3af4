"""Lookup-free quantisation (MAGVIT-v2, arXiv 2310.05737): a code is the signs of `bits` scalars.

The mean distribution over codes is computed in groups of at most nine bits, each as a product of
two halves averaged by one matrix product: memory is positions x 32, never positions x codes.
"""

import torch
from torch import Tensor

from quintet.nn.quantisers.binary import BinaryQuantiser, entropy

GROUP_BITS = 9
"""Bits per joint distribution: one batch populates 512 codes well."""


def code_probabilities(bits: Tensor) -> Tensor:
    """(n, k) probabilities of ones -> (n, 2 ** k) probabilities of codes, first bit highest."""
    codes = bits.new_ones(bits.shape[0], 1)
    for column in bits.unbind(1):
        pair = torch.stack((1 - column, column), dim=1)
        codes = (codes[:, :, None] * pair[:, None, :]).flatten(1)
    return codes


def mean_code_probabilities(bits: Tensor) -> Tensor:
    """The mean over positions of `code_probabilities`, without materialising them."""
    half = (bits.shape[1] + 1) // 2
    left, right = code_probabilities(bits[:, :half]), code_probabilities(bits[:, half:])
    return (left.T @ right).flatten() / bits.shape[0]


def codebook_entropy(bits: Tensor) -> Tensor:
    """Entropy of the mean distribution over codes; groups of bits are taken as independent."""
    groups = bits.split(GROUP_BITS, 1)
    return torch.stack([entropy(mean_code_probabilities(group)) for group in groups]).sum()


class LFQ(BinaryQuantiser):
    """Codes are the signs of a projection of the latents."""

    def __init__(
        self,
        dim: int,
        bits: int,
        *,
        entropy_weight: float = 0.2,
        commitment_weight: float = 0.25,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(
            dim,
            bits,
            magnitude=1.0,
            entropy_weight=entropy_weight,
            commitment_weight=commitment_weight,
            temperature=temperature,
        )

    def soften(self, projected: Tensor) -> Tensor:
        return projected

    def codebook_entropy(self, logits: Tensor) -> Tensor:
        return codebook_entropy(torch.sigmoid(logits))

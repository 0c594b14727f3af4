"""Lookup-free quantisation (MAGVIT-v2, arXiv 2310.05737): a code is the signs of `bits` scalars.

The id is the signs read as bits, so no table of codes exists and the codebook may be large. The
entropy loss minimises the per-sample entropy and maximises the codebook entropy. Codes factor into
bits, so the per-sample entropy is a sum of binary entropies. The codebook entropy needs the mean
distribution over codes. It is computed in groups of at most nine bits, each as a product of two
halves averaged by one matrix product: memory is positions x 32, never positions x codes.

The mean is over the positions of one call. With gradient accumulation or several processes the loss
is averaged over micro-batches and differs from the full batch's (entropy is not additive).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.precision import matmul, without_autocast
from quintet.nn.quantisers.base import (
    DiscreteBottleneck,
    ProjectIn,
    ProjectOut,
    Quantised,
    straight_through,
)

GROUP_BITS = 9
"""Bits per joint distribution: one batch populates 512 codes well."""


def binary_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of Bernoulli variables with these logits; finite for all logits."""
    return F.softplus(logits) - logits * torch.sigmoid(logits)


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats; the clamp is for the gradient, which is NaN where a probability is 0."""
    positive = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny)
    return -torch.special.xlogy(positive, positive).sum()


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
    return matmul(left.T, right).flatten() / bits.shape[0]


def codebook_entropy(bits: Tensor) -> Tensor:
    """Entropy of the mean distribution over codes; groups of bits are taken as independent."""
    groups = bits.split(GROUP_BITS, 1)
    return torch.stack([entropy(mean_code_probabilities(group)) for group in groups]).sum()


class LFQ(DiscreteBottleneck):
    """Codes are the signs of a projection of the latents, times `magnitude`."""

    basis: Tensor

    def __init__(
        self, dim: int, bits: int, *, entropy_weight: float = 0.2, commitment_weight: float = 0.25
    ) -> None:
        super().__init__()
        if not 1 <= bits <= 62:
            raise ValueError(f"bits must be between 1 and 62, not {bits}")
        self.bits, self.codebook_size = bits, 2**bits
        self.magnitude = self.magnitude_of(bits)
        self.entropy_weight, self.commitment_weight = entropy_weight, commitment_weight
        self.project_in = ProjectIn(dim, bits)
        self.project_out = ProjectOut(bits, dim, self.magnitude)
        self.register_buffer("basis", 2 ** torch.arange(bits), persistent=False)

    def magnitude_of(self, bits: int) -> float:
        """The size of each coordinate of a code."""
        return 1.0

    def soften(self, projected: Tensor) -> Tensor:
        """The continuous counterpart of the codes, with the signs of `projected`."""
        return projected

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            projected = self.project_in(latents)
            ones, soft = projected.detach() > 0, self.soften(projected)
            codes = self.codes(ones)
            values = self.project_out(straight_through(codes, soft))
            loss = self.loss(soft, codes) if self.training else soft.new_zeros(())
        return Quantised(values, self.bits_to_ids(ones), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.bits_to_ids(self.project_in(latents) > 0)

    def ids_to_values(self, ids: Tensor) -> Tensor:
        with without_autocast(ids):
            return self.project_out(self.codes(ids[..., None] // self.basis % 2 == 1))

    def loss(self, soft: Tensor, codes: Tensor) -> Tensor:
        """Distances are in units of `magnitude`, so that the weights suit either quantiser."""
        commitment_weight = self.commitment_weight / self.magnitude**2
        commitment = F.mse_loss(soft, codes)
        return commitment_weight * commitment + self.entropy_weight * self.entropy_loss(soft)

    def entropy_loss(self, soft: Tensor) -> Tensor:
        """Normalised to bits per bit, so that its weight suits any codebook size; -1 is optimal.

        p(c) is proportional to exp(-|z - c|^2), z and c in units of the magnitude: logits of 4 z
        for each bit.
        """
        logits = soft.flatten(0, -2) * (4 / self.magnitude)
        per_sample_entropy = binary_entropy(logits).mean(0).sum()
        difference = per_sample_entropy - codebook_entropy(torch.sigmoid(logits))
        return difference / (self.bits * math.log(2))

    def codes(self, ones: Tensor) -> Tensor:
        bits = ones.to(self.project_out.weight.dtype)
        return bits * (2 * self.magnitude) - self.magnitude

    def bits_to_ids(self, ones: Tensor) -> Tensor:
        return (ones.long() * self.basis).sum(-1)

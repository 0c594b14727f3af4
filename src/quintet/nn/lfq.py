"""Look-up free quantisation (MAGVIT-v2, arXiv 2310.05737): a code is the signs of `bits` numbers.

Its entropy term wants each position sure of its code and the batch spread over all codes. Codes
factor into bits, so the first part is a sum of binary entropies. The second needs the mean
distribution over codes; it is taken in groups of at most nine bits, each group as a product of two
halves averaged by one matrix product: memory is positions x 32, never positions x codes.

The mean is over the positions of one call. With accumulation or several processes the term is the
mean of the micro-batches' terms, not that of the whole batch (entropy is not additive).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import (
    ProjectIn,
    ProjectOut,
    Quantised,
    straight_through,
    without_autocast,
)

GROUP = 9
"""Bits whose joint distribution is measured: 512 codes are filled well by one batch."""


def binary_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of a bit with these log-odds, finite for any of them."""
    return F.softplus(logits) - logits * torch.sigmoid(logits)


def entropy(probabilities: Tensor) -> Tensor:
    return -torch.special.xlogy(probabilities, probabilities).sum()


def bit_products(bits: Tensor) -> Tensor:
    """(n, k) chances of a one -> (n, 2 ** k) chances of every pattern, first bit highest."""
    patterns = bits.new_ones(bits.shape[0], 1)
    for column in bits.unbind(1):
        pair = torch.stack((1 - column, column), dim=1)
        patterns = (patterns[:, :, None] * pair[:, None, :]).flatten(1)
    return patterns


def mean_patterns(bits: Tensor) -> Tensor:
    """The mean over positions of `bit_products`, without building it."""
    half = (bits.shape[1] + 1) // 2
    left, right = bit_products(bits[:, :half]), bit_products(bits[:, half:])
    return (left.T @ right).flatten() / bits.shape[0]


def spread_entropy(bits: Tensor, group: int = GROUP) -> Tensor:
    """Entropy of the mean distribution over codes, groups of bits taken as independent."""
    return torch.stack([entropy(mean_patterns(part)) for part in bits.split(group, 1)]).sum()


class LFQ(nn.Module):
    """Codes are the signs of a projection of the latents."""

    places: Tensor

    def __init__(
        self,
        dim: int,
        bits: int,
        *,
        entropy_weight: float = 0.2,
        commitment_weight: float = 0.25,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if not 1 <= bits <= 62:
            raise ValueError(f"bits must be between 1 and 62, not {bits}")
        self.bits, self.codes = bits, 2**bits
        self.entropy_weight, self.commitment_weight = entropy_weight, commitment_weight
        self.temperature = temperature
        self.project_in = ProjectIn(dim, bits)
        self.project_out = ProjectOut(bits, dim)
        self.register_buffer("places", 2 ** torch.arange(bits), persistent=False)

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            soft = self.project_in(latents)
            signs = self.signs(soft.detach() > 0)
            values = self.project_out(straight_through(signs, soft))
            loss = self.loss(soft, signs) if self.training else soft.new_zeros(())
        return Quantised(values, self.join(soft.detach() > 0), loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.join(self.project_in(latents) > 0)

    def ids_to_values(self, ids: Tensor) -> Tensor:
        with without_autocast(ids):
            return self.project_out(self.signs(ids[..., None] // self.places % 2 == 1))

    def loss(self, soft: Tensor, signs: Tensor) -> Tensor:
        commitment = F.mse_loss(soft, signs)
        return self.commitment_weight * commitment + self.entropy_weight * self.entropy_term(soft)

    def entropy_term(self, soft: Tensor) -> Tensor:
        """Per bit and in bits, so that its weight means the same for any codebook: -1 is best.

        A code c has chance exp(-|z - c|^2 / t) up to a constant: log-odds of 4 z / t for each bit.
        """
        log_odds = soft.flatten(0, -2) * (4 / self.temperature)
        sure = binary_entropy(log_odds).mean(0).sum()
        spread = spread_entropy(torch.sigmoid(log_odds))
        return (sure - spread) / (self.bits * math.log(2))

    def signs(self, ones: Tensor) -> Tensor:
        return ones.to(self.project_out.weight.dtype) * 2 - 1

    def join(self, ones: Tensor) -> Tensor:
        return (ones.long() * self.places).sum(-1)

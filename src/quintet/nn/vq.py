"""Vector quantisation with a codebook of moving averages (VQ-VAE, arXiv 1711.00937).

The gradient passes by the rotation trick (arXiv 2410.06424): the rotation and scaling that carry a
latent onto its code are held constant, so the gradient turns with it instead of being pasted over.

A code that falls out of use is revived as a copy of a much used one, moved by noise as large as the
quantisation error: the two then share that code's positions. Counts and codebook are already equal
on all processes and the noise is keyed, so every process revives the same codes at the same place.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import ProjectIn, ProjectOut, Quantised, straight_through, without_autocast
from quintet.nn.statistics import CommitContext, accumulator, keyed_normal

ROWS = 8192
"""Positions compared with the codebook at a time: bounds the table of distances."""


def nearest(rows: Tensor, codebook: Tensor) -> Tensor:
    """(n, d), (k, d) -> (n,): the closest code; |row|^2 is equal for all and left out."""
    bias = -0.5 * codebook.square().sum(1)
    parts = [torch.addmm(bias, part, codebook.T).argmax(1) for part in rows.split(ROWS)]
    return torch.cat(parts)


def rotate(start: Tensor, end: Tensor) -> Tensor:
    """`start` carried onto `end` by a constant rotation and scale (equation 4 of the paper)."""
    length, target = start.norm(dim=-1, keepdim=True), end.norm(dim=-1, keepdim=True)
    e, q = (start / length.clamp_min(1e-6)).detach(), (end / target.clamp_min(1e-6)).detach()
    middle = F.normalize(e + q, dim=-1)
    along = (start * middle).sum(-1, keepdim=True)
    forward = (start * e).sum(-1, keepdim=True)
    scale = (target / length.clamp_min(1e-6)).detach()
    return scale * (start - 2 * along * middle + 2 * forward * q)


class Statistics(NamedTuple):
    """Of one step, scaled so that the mean count is one, whatever the size of the batch."""

    counts: Tensor
    sums: Tensor
    error: Tensor
    usable: Tensor


class VectorQuantiser(nn.Module):
    """Replaces a projection of each latent by the nearest entry of a codebook."""

    codebook: Tensor
    counts: Tensor
    commits: Tensor
    new_counts: Tensor
    new_sums: Tensor
    new_error: Tensor

    def __init__(
        self,
        dim: int,
        codes: int,
        *,
        code_dim: int = 16,
        decay: float = 0.98,
        commitment_weight: float = 0.25,
        dead_below: float = 0.1,
    ) -> None:
        super().__init__()
        self.codes, self.decay = codes, decay
        self.commitment_weight, self.dead_below = commitment_weight, dead_below
        self.project_in = ProjectIn(dim, code_dim)
        self.project_out = ProjectOut(code_dim, dim)
        self.register_buffer("codebook", torch.randn(codes, code_dim))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("commits", torch.zeros(()))
        self.register_buffer("new_counts", accumulator(codes), persistent=False)
        self.register_buffer("new_sums", accumulator(codes, code_dim), persistent=False)
        self.register_buffer("new_error", accumulator(), persistent=False)

    def forward(self, latents: Tensor) -> Quantised:
        with without_autocast(latents):
            soft = self.project_in(latents)
            ids = self.lookup(soft)
            code = self.codebook[ids]
            if self.training:
                self.collect(soft.detach(), ids, code)
            values = self.project_out(straight_through(code, rotate(soft, code)))
            loss = self.commitment_weight * F.mse_loss(soft, code)
        return Quantised(values, ids, loss)

    def to_ids(self, latents: Tensor) -> Tensor:
        with without_autocast(latents):
            return self.lookup(self.project_in(latents))

    def ids_to_values(self, ids: Tensor) -> Tensor:
        with without_autocast(ids):
            return self.project_out(self.codebook[ids])

    def lookup(self, soft: Tensor) -> Tensor:
        return nearest(soft.detach().flatten(0, -2), self.codebook).view(soft.shape[:-1])

    def collect(self, soft: Tensor, ids: Tensor, code: Tensor) -> None:
        rows, flat = soft.flatten(0, -2), ids.flatten()
        ones = torch.ones_like(flat, dtype=self.new_counts.dtype)
        self.new_counts.index_add_(0, flat, ones)
        self.new_sums.index_add_(0, flat, rows)
        self.new_error.add_((soft - code).square().sum())

    @torch.no_grad()
    def commit(self, at: CommitContext) -> None:
        """Move the codebook by what the step saw, then revive codes that nobody uses."""
        step = self.take(at)
        # A shorter memory at the start: within some ten steps the codebook grows out of the data.
        decay = ((1 + self.commits) / (10 + self.commits)).clamp_max(self.decay)
        counts = torch.lerp(step.counts, self.counts, decay)
        sums = torch.lerp(step.sums, self.codebook * self.counts[:, None], decay)
        codebook = sums / counts.clamp_min(1e-6)[:, None]
        noise = step.error * keyed_normal(codebook, at.key("vq.revive"))
        codebook, counts = self.revive(codebook, counts, noise)
        self.codebook.copy_(torch.where(step.usable, codebook, self.codebook))
        self.counts.copy_(torch.where(step.usable, counts, self.counts))
        self.commits.add_(step.usable)

    def take(self, at: CommitContext) -> Statistics:
        """Sum over processes, empty the accumulators, and scale."""
        counts, sums, error = (at.sum(x) for x in (self.new_counts, self.new_sums, self.new_error))
        seen = counts.sum()
        scale = self.codes / seen.clamp_min(1)
        deviation = (error / (seen.clamp_min(1) * self.codebook.shape[1])).sqrt()
        usable = (seen > 0) & (at.skipped == 0)
        step = Statistics(counts * scale, sums * scale, deviation, usable)
        for collected in (self.new_counts, self.new_sums, self.new_error):
            collected.zero_()
        return step

    def revive(self, codebook: Tensor, counts: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The n-th dead code becomes a moved copy of the n-th most used one."""
        dead = counts < self.dead_below
        alive = (self.codes - dead.sum()).clamp_min(1)
        order = counts.argsort(descending=True, stable=True)
        donors = order[(dead.cumsum(0) - 1).clamp_min(0) % alive]
        fresh = codebook[donors] + noise
        return torch.where(dead[:, None], fresh, codebook), torch.where(dead, 0.5, counts)

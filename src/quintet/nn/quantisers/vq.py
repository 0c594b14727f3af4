"""Vector quantisation with an EMA codebook (VQ-VAE, arXiv 1711.00937).

The gradient estimator is the rotation trick (arXiv 2410.06424): the rotation and scaling from a
latent to its code are treated as constants, so the gradient is rotated instead of copied.

A dead code is replaced by a copy of a frequent one plus noise of the size of the quantisation
error; the two then share the positions. Counts and codebook are equal on all processes and the
noise is keyed, so every process makes the same replacement.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.precision import linear, without_autocast
from quintet.nn.quantisers.base import (
    DiscreteBottleneck,
    ProjectIn,
    ProjectOut,
    Quantised,
    straight_through,
)
from quintet.nn.statistics import CommitContext, accumulator

CHUNK = 8192
"""Positions compared with the codebook at a time: bounds the distance matrix."""


def nearest(rows: Tensor, codebook: Tensor) -> Tensor:
    """(n, d), (k, d) -> (n,): the nearest code; |row|^2 is constant and omitted."""
    bias = -0.5 * codebook.square().sum(1)
    parts = [linear(part, codebook, bias).argmax(1) for part in rows.split(CHUNK)]
    return torch.cat(parts)


def rotate(start: Tensor, end: Tensor) -> Tensor:
    """`start` mapped onto `end` by a constant rotation and scale (equation 4 of the paper)."""
    length, target = start.norm(dim=-1, keepdim=True), end.norm(dim=-1, keepdim=True)
    e, q = (start / length.clamp_min(1e-6)).detach(), (end / target.clamp_min(1e-6)).detach()
    middle = F.normalize(e + q, dim=-1)
    along = (start * middle).sum(-1, keepdim=True)
    forward = (start * e).sum(-1, keepdim=True)
    scale = (target / length.clamp_min(1e-6)).detach()
    return scale * (start - 2 * along * middle + 2 * forward * q)


class VectorQuantiser(DiscreteBottleneck):
    """Replaces a projection of each latent by its nearest codebook entry."""

    decay, dead_code_threshold = 0.98, 0.1
    codebook: Tensor
    counts: Tensor
    commits: Tensor
    new_counts: Tensor
    new_sums: Tensor
    new_error: Tensor

    def __init__(
        self, dim: int, codebook_size: int, *, code_dim: int = 16, commitment_weight: float = 0.25
    ) -> None:
        super().__init__()
        self.codebook_size, self.commitment_weight = codebook_size, commitment_weight
        self.project_in = ProjectIn(dim, code_dim)
        self.project_out = ProjectOut(code_dim, dim)
        self.register_buffer("codebook", torch.randn(codebook_size, code_dim))
        self.register_buffer("counts", torch.ones(codebook_size))
        self.register_buffer("commits", torch.zeros(()))
        self.register_buffer("new_counts", accumulator(codebook_size), persistent=False)
        self.register_buffer("new_sums", accumulator(codebook_size, code_dim), persistent=False)
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
    def commit(self, context: CommitContext) -> None:
        """Update the codebook with the statistics of the step, then replace dead codes."""
        new_counts, new_sums, error, usable = self.reduce_statistics(context)
        # A smaller decay at first: the codebook reaches the data within about ten steps.
        decay = ((1 + self.commits) / (10 + self.commits)).clamp_max(self.decay)
        counts = torch.lerp(new_counts, self.counts, decay)
        sums = torch.lerp(new_sums, self.codebook * self.counts[:, None], decay)
        codebook = sums / counts.clamp_min(1e-6)[:, None]
        name = f"vq.revive.{self.level}" if self.level else "vq.revive"
        noise = error * context.noise(codebook, name)
        codebook, counts = self.replace_dead_codes(codebook, counts, noise)
        self.codebook.copy_(torch.where(usable, codebook, self.codebook))
        self.counts.copy_(torch.where(usable, counts, self.counts))
        self.commits.add_(usable)

    def reduce_statistics(self, context: CommitContext) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Counts and sums over processes, scaled to a mean count of one whatever the batch size,
        deviation, and whether they are usable; resets the accumulators."""
        counts, sums, error = (
            context.sum(x) for x in (self.new_counts, self.new_sums, self.new_error)
        )
        total = counts.sum()
        scale = self.codebook_size / total.clamp_min(1)
        deviation = (error / (total.clamp_min(1) * self.codebook.shape[1])).sqrt()
        usable = (total > 0) & (context.skipped == 0)
        step = counts * scale, sums * scale, deviation, usable
        for buffer in (self.new_counts, self.new_sums, self.new_error):
            buffer.zero_()
        return step

    def replace_dead_codes(
        self, codebook: Tensor, counts: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The n-th dead code becomes a perturbed copy of the n-th most frequent one."""
        dead = counts < self.dead_code_threshold
        alive = (self.codebook_size - dead.sum()).clamp_min(1)
        order = counts.argsort(descending=True, stable=True)
        donors = order[(dead.cumsum(0) - 1).clamp_min(0) % alive]
        fresh = codebook[donors] + noise
        return torch.where(dead[:, None], fresh, codebook), torch.where(dead, 0.5, counts)

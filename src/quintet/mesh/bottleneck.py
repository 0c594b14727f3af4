"""From places to codes and back: what lies between the encoder and the decoder of a mesh.

Shapes: b meshes, v vertices, c corners, q codes of a vertex, w numbers of the encoder for each.
Places are counted in bins. All of it runs in full precision.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.mesh import geometry
from quintet.mesh.config import MeshAutoencoderConfig
from quintet.mesh.graph import zeroed
from quintet.nn.lfq import LFQ
from quintet.nn.quantise import Quantised
from quintet.nn.residual import Residual, ResidualFSQ
from quintet.nn.vq import VectorQuantiser


def waves(coordinates: Tensor, octaves: int) -> Tensor:
    """(..., c) in -1..1 -> (..., c (1 + 2 octaves)): themselves, sines and cosines."""
    speeds = math.pi * 2.0 ** torch.arange(octaves, device=coordinates.device)
    angles = coordinates[..., None] * speeds.to(coordinates.dtype)
    return torch.cat((coordinates[..., None], angles.sin(), angles.cos()), -1).flatten(-2)


def octaves_of(bins: int) -> int:
    """Down to a wave of two bins."""
    return max(1, math.ceil(math.log2(bins)))


def logistic_loss(target: Tensor, place: Tensor, log_scale: Tensor, bins: int) -> Tensor:
    """-log of the logistic's mass in the target's bin, all in bins; the outer bins have no end.

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - e^(b - a)) with a - b = 1 / scale: no
    difference of near equals, and two sigmoids instead of a softmax over all bins.
    """
    sharpness = torch.exp(-log_scale)
    error = (target - place) * sharpness
    below = F.softplus(-error - 0.5 * sharpness)
    above = F.softplus(error - 0.5 * sharpness)
    between = -torch.log(-torch.expm1(-sharpness))
    first, last = target == 0, target == bins - 1
    inner = torch.where(last, above, below + above + between)
    return torch.where(first, below, inner)


class Position(nn.Module):
    """The straight way: a vertex's own place, moved a little, rounded by residual FSQ.

    The first and the last bin lie on the first and the last step, so every code is in reach, and
    steps that are no multiple of bins let all fine digits occur.
    """

    steps: Tensor

    def __init__(self, config: MeshAutoencoderConfig) -> None:
        super().__init__()
        self.bins, self.freedom = config.bins, config.freedom
        self.stay_weight = config.stay_weight
        self.quantiser = ResidualFSQ(config.levels, config.depth)
        self.octaves = octaves_of(config.bins)
        self.width, self.seen = 3, 3 * (1 + 2 * self.octaves)
        self.scale = 1.0
        self.register_buffer("steps", torch.tensor(self.quantiser.steps), persistent=False)

    def latents(self, vertices: Tensor, words: Tensor) -> Tensor:
        ends = 1 - 1 / self.steps.to(words.dtype)
        place = (2 * vertices.to(words.dtype) / (self.bins - 1) - 1) * ends
        return place + self.move(words) * 2 / self.steps

    def move(self, words: Tensor) -> Tensor:
        """In finest steps."""
        return self.freedom * torch.tanh(words)

    def forward(self, vertices: Tensor, words: Tensor, used: Tensor) -> Quantised:
        """A vertex should stay where it is, unless that costs precision."""
        values, ids, _ = self.quantiser(self.latents(vertices, words).movedim(-1, 1))
        moved = torch.where(used[..., None], self.move(words).square(), 0).sum((1, 2))
        loss = self.stay_weight * (moved / (3 * used.sum(1)).clamp_min(1)).mean()
        return Quantised(values.movedim(1, -1), ids, loss)

    def to_ids(self, vertices: Tensor, words: Tensor) -> Tensor:
        return self.quantiser.to_ids(self.latents(vertices, words).movedim(-1, 1))

    def ids_to_values(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.quantiser.ids_to_values(ids, dtype).movedim(1, -1)

    def features(self, values: Tensor) -> Tensor:
        """Detached: the slope of a fast wave says nothing about where a vertex should go."""
        return waves(values.detach(), self.octaves)

    def place(self, values: Tensor, correction: Tensor) -> Tensor:
        """In bins: linear in the code, and one finest step of freedom around it."""
        ends = 1 - 1 / self.steps.to(values.dtype)
        step = (self.bins - 1) / (self.steps.to(values.dtype) - 1)
        return (values / ends + 1) * ((self.bins - 1) / 2) + step * torch.tanh(correction)


class Latent(nn.Module):
    """The learned way: numbers of the encoder beside a projection of the place, by LFQ or VQ."""

    def __init__(self, config: MeshAutoencoderConfig) -> None:
        super().__init__()
        self.bins, self.width = config.bins, config.latent_dim
        self.octaves, self.seen = octaves_of(config.bins), config.latent_dim
        self.scale = config.bins / 16
        self.straight_in = nn.Linear(3 * (1 + 2 * self.octaves), self.width)
        self.quantiser = Residual([quantiser_of(config) for _ in range(config.depth)])
        self.straight_out = zeroed(nn.Linear(self.width, 3))

    def latents(self, vertices: Tensor, words: Tensor) -> Tensor:
        place = geometry.undiscretise(vertices, self.bins).to(words.dtype)
        return (self.straight_in(waves(place, self.octaves)) + words).movedim(-1, 1)

    def forward(self, vertices: Tensor, words: Tensor, used: Tensor) -> Quantised:
        """Unused slots repeat used ones, so that they move no statistics of the codebook far."""
        latents = self.latents(vertices, words)
        order = (~used).to(torch.uint8).argsort(dim=1, stable=True)
        slot = torch.arange(used.shape[1], device=used.device).expand_as(used)
        copied = order.gather(1, slot % used.sum(1, keepdim=True).clamp_min(1))
        source = torch.where(used, slot, copied)[:, None]
        values, ids, loss = self.quantiser(latents.gather(2, source.expand_as(latents)))
        return Quantised(values.movedim(1, -1), ids, loss)

    def to_ids(self, vertices: Tensor, words: Tensor) -> Tensor:
        return self.quantiser.to_ids(self.latents(vertices, words))

    def ids_to_values(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.quantiser.ids_to_values(ids).movedim(1, -1).to(dtype)

    def features(self, values: Tensor) -> Tensor:
        return values

    def place(self, values: Tensor, correction: Tensor) -> Tensor:
        return (self.straight_out(values) + correction + 1) * ((self.bins - 1) / 2)


def quantiser_of(config: MeshAutoencoderConfig) -> nn.Module:
    dim, bits = config.latent_dim, config.codebook_bits
    if config.quantiser == "lfq":
        weights = {"entropy_weight": config.entropy_weight}
        return LFQ(dim, bits, commitment_weight=config.commitment_weight, **weights)
    return VectorQuantiser(dim, 2**bits, commitment_weight=config.commitment_weight)


def mean_by_slot(rows: Tensor, weights: Tensor, slots: Tensor, count: int) -> Tensor:
    """(m, w) rows and (m, 1) weights -> (count, w + 1): means of each slot, and its weight.

    One index_add over both: it has a deterministic version on every device.
    """
    totals = rows.new_zeros(count, rows.shape[1] + 1)
    totals = totals.index_add(0, slots, torch.cat((rows * weights, weights), 1))
    return torch.cat((totals[:, :-1] / totals[:, -1:].clamp_min(1), totals[:, -1:]), 1)


def merged(codes: Tensor, values: Tensor, size: int) -> Tensor:
    """(b, c, q) and (b, c, w): values averaged over the corners of a mesh with equal codes."""
    keys = codes[..., 0]
    for level in codes.unbind(-1)[1:]:
        keys = keys * size + level
    ordered, order = keys.sort(dim=1)
    new = F.pad((ordered[:, 1:] != ordered[:, :-1]).long(), (1, 0))
    offset = keys.shape[1] * torch.arange(keys.shape[0], device=keys.device)[:, None]
    group = torch.empty_like(keys).scatter(1, order, new.cumsum(1) + offset).flatten()
    rows = values.flatten(0, 1)
    means = mean_by_slot(rows, torch.ones_like(rows[:, :1]), group, rows.shape[0])
    return means[group, :-1].view_as(values)

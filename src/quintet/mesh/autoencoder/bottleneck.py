"""Vertex quantisers between the encoder and the decoder of a mesh.

Shapes: b meshes, v vertices, c corners, q codes of a vertex, w vertex features of the encoder.
Positions are in units of bins. All of it runs in full precision.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.mesh import geometry
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.geometry import fourier_features, num_octaves
from quintet.nn.attention import zero_init
from quintet.nn.packing import mean_by_owner
from quintet.nn.precision import FullPrecisionLinear
from quintet.nn.quantisers.base import Quantised
from quintet.nn.quantisers.build import build_codebook
from quintet.nn.quantisers.residual import ResidualFSQ, ResidualQuantiser

OFFSET_WEIGHT = 4.0
"""Weight of the offset penalty, which keeps the code of a position unique."""


def logistic_loss(target: Tensor, mean: Tensor, log_scale: Tensor, bins: int) -> Tensor:
    """Negative log-likelihood of a discretised logistic, in bins; the outer bins are unbounded.

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - e^(b - a)) with a - b = 1 / scale avoids
    cancellation and needs two sigmoids instead of a softmax over all bins.
    """
    inverse_scale = torch.exp(-log_scale)
    error = (target - mean) * inverse_scale
    below = F.softplus(-error - 0.5 * inverse_scale)
    above = F.softplus(error - 0.5 * inverse_scale)
    between = -torch.log(-torch.expm1(-inverse_scale))
    first, last = target == 0, target == bins - 1
    inner = torch.where(last, above, below + above + between)
    return torch.where(first, below, inner)


class PositionQuantiser(nn.Module):
    """Residual FSQ of the vertex position, plus a small offset predicted by the encoder.

    The first and the last bin coincide with the first and the last level, so every code is
    reachable; a level spacing that is not a multiple of a bin makes all fine digits occur.
    """

    steps: Tensor

    def __init__(self, config: MeshAutoencoderConfig) -> None:
        super().__init__()
        self.bins, self.max_offset = config.bins, config.max_offset
        self.quantiser = ResidualFSQ(config.levels, config.depth)
        self.octaves = num_octaves(config.bins)
        self.latent_dim, self.feature_dim = 3, 3 * (1 + 2 * self.octaves)
        self.initial_scale = 1.0
        self.register_buffer("steps", torch.tensor(self.quantiser.steps), persistent=False)

    def latents(self, vertices: Tensor, vertex_features: Tensor) -> Tensor:
        extent = 1 - 1 / self.steps.to(vertex_features.dtype)
        position = (2 * vertices.to(vertex_features.dtype) / (self.bins - 1) - 1) * extent
        return position + self.offset(vertex_features) * 2 / self.steps

    def offset(self, vertex_features: Tensor) -> Tensor:
        """Offset of each vertex, in units of the finest level."""
        return self.max_offset * torch.tanh(vertex_features)

    def forward(
        self, vertices: Tensor, vertex_features: Tensor, owner: Tensor, count: int
    ) -> Quantised:
        """Quantise, with a penalty on offsets: move a vertex only where this gains precision.

        `owner` (b, v): which of the `count` meshes a vertex is of, -1 if no face uses it.
        """
        values, ids, _ = self.quantiser(self.latents(vertices, vertex_features).movedim(-1, 1))
        squares = self.offset(vertex_features).square().mean(-1)
        penalty = mean_by_owner(squares.flatten(), owner.flatten(), count).mean()
        return Quantised(values.movedim(1, -1), ids, OFFSET_WEIGHT * penalty)

    def to_ids(self, vertices: Tensor, vertex_features: Tensor) -> Tensor:
        return self.quantiser.to_ids(self.latents(vertices, vertex_features).movedim(-1, 1))

    def ids_to_values(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.quantiser.ids_to_values(ids, dtype).movedim(1, -1)

    def features(self, values: Tensor) -> Tensor:
        """Decoder input. Detached: gradients of high frequencies do not help to place a vertex."""
        return fourier_features(values.detach(), self.octaves)

    def position(self, values: Tensor, correction: Tensor) -> Tensor:
        """Position in bins: linear in the code, corrected by at most one finest level."""
        extent = 1 - 1 / self.steps.to(values.dtype)
        step = (self.bins - 1) / (self.steps.to(values.dtype) - 1)
        return (values / extent + 1) * ((self.bins - 1) / 2) + step * torch.tanh(correction)


class LatentQuantiser(nn.Module):
    """LFQ or VQ of vertex features added to a projection of the position."""

    def __init__(self, config: MeshAutoencoderConfig) -> None:
        super().__init__()
        self.bins, self.latent_dim = config.bins, config.latent_dim
        self.octaves, self.feature_dim = num_octaves(config.bins), config.latent_dim
        self.initial_scale = config.bins / 16
        self.position_in = FullPrecisionLinear(3 * (1 + 2 * self.octaves), self.latent_dim)
        levels = [build_codebook(config, self.latent_dim) for _ in range(config.depth)]
        self.quantiser = ResidualQuantiser(levels)
        self.position_out = zero_init(FullPrecisionLinear(self.latent_dim, 3))

    def latents(self, vertices: Tensor, vertex_features: Tensor) -> Tensor:
        position = geometry.undiscretise(vertices, self.bins).to(vertex_features.dtype)
        projected = self.position_in(fourier_features(position, self.octaves))
        return (projected + vertex_features).movedim(-1, 1)

    def forward(
        self, vertices: Tensor, vertex_features: Tensor, owner: Tensor, count: int
    ) -> Quantised:
        """Quantise. Unused slots repeat used ones, so padding barely shifts codebook statistics."""
        latents, used = self.latents(vertices, vertex_features), owner >= 0
        order = (~used).to(torch.uint8).argsort(dim=1, stable=True)
        slot = torch.arange(used.shape[1], device=used.device).expand_as(used)
        repeated = order.gather(1, slot % used.sum(1, keepdim=True).clamp_min(1))
        source = torch.where(used, slot, repeated)[:, None]
        values, ids, loss = self.quantiser(latents.gather(2, source.expand_as(latents)))
        return Quantised(values.movedim(1, -1), ids, loss)

    def to_ids(self, vertices: Tensor, vertex_features: Tensor) -> Tensor:
        return self.quantiser.to_ids(self.latents(vertices, vertex_features))

    def ids_to_values(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.quantiser.ids_to_values(ids).movedim(1, -1).to(dtype)

    def features(self, values: Tensor) -> Tensor:
        return values

    def position(self, values: Tensor, correction: Tensor) -> Tensor:
        return (self.position_out(values) + correction + 1) * ((self.bins - 1) / 2)


def scatter_mean(rows: Tensor, weights: Tensor, slots: Tensor, count: int) -> Tensor:
    """(m, w) rows and (m, 1) weights -> (count, w + 1): mean of each slot, and its total weight.

    A single index_add covers both; it has a deterministic version on every device.
    """
    totals = rows.new_zeros(count, rows.shape[1] + 1)
    totals = totals.index_add(0, slots, torch.cat((rows * weights, weights), 1))
    return torch.cat((totals[:, :-1] / totals[:, -1:].clamp_min(1), totals[:, -1:]), 1)


def average_equal_codes(codes: Tensor, values: Tensor, codebook_size: int) -> Tensor:
    """(b, c, q) and (b, c, w): values averaged over the corners of a mesh with equal codes."""
    keys = codes[..., 0]
    for level in codes.unbind(-1)[1:]:
        keys = keys * codebook_size + level
    ordered, order = keys.sort(dim=1)
    new = F.pad((ordered[:, 1:] != ordered[:, :-1]).long(), (1, 0))
    offset = keys.shape[1] * torch.arange(keys.shape[0], device=keys.device)[:, None]
    group = torch.empty_like(keys).scatter(1, order, new.cumsum(1) + offset).flatten()
    rows = values.flatten(0, 1)
    means = scatter_mean(rows, torch.ones_like(rows[:, :1]), group, rows.shape[0])
    return means[group, :-1].view_as(values)

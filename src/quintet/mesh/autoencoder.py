"""MeshAutoencoder: meshes to codes at their vertices and back (MeshGPT, arXiv 2311.15475).

Shapes: b meshes, v vertices, f faces of k corners (a face with a corner of -1 is padding), n
neighbours of a face (-1 is none), q = `depth` codes of a vertex, d = `dim`.

    corners in bins, angles, area, normal (b, f, .) -> graph layers -> faces (b, f, d)
    faces -> a word at each corner -> mean at each vertex -> quantiser with the vertex's own place
    codes (b, f, k q) -> values at the corners -> layers over the row of faces -> place and scale

Position goes straight through. By default a vertex is rounded where it lies (`Position`): the
graph moves it by a part of the finest step at most and the decoder by one step, so codes mean the
same in every mesh, which is what the model that writes them later needs. Each coordinate is a
discretised logistic around that place (PixelCNN++, arXiv 1701.05517).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.pretrained import Pretrained
from quintet.mesh import geometry
from quintet.mesh.config import MeshAutoencoderConfig
from quintet.nn.lfq import LFQ
from quintet.nn.quantise import Quantised, full_precision, without_autocast
from quintet.nn.residual import Residual, ResidualFSQ
from quintet.nn.statistics import CommitContext
from quintet.nn.vq import VectorQuantiser

SHARPEST = 0.05
"""The smallest scale of a logistic, in bins: below it there is only rounding noise to gain."""

Hear = Callable[[Tensor], Tensor]


class Reconstruction(NamedTuple):
    loss: Tensor
    """0-dim: the mean over meshes of `coordinate_loss`, plus `quantiser_loss`."""
    coordinate_loss: Tensor
    """(b,): nats per coordinate, a mean over each mesh's own coordinates."""
    quantiser_loss: Tensor
    """0-dim, already weighted."""
    bins: Tensor
    """(b, f, k, 3): the most likely bin of each coordinate; -1 in padding."""
    target: Tensor
    """(b, f, k, 3): the bin that each coordinate lies in; -1 in padding."""
    codes: Tensor
    """(b, f, k q): corner by corner, coarsest first; -1 in padding."""
    mask: Tensor
    """(b, f): which faces are real."""


class Decoded(NamedTuple):
    coordinates: Tensor
    """(b, f, k, 3), fp32: centres of bins in -1..1, equal where codes are; 0 in padding."""
    mask: Tensor
    """(b, f): which faces are real."""


class Mesh(NamedTuple):
    """A batch of meshes as the encoder sees it."""

    mask: Tensor
    """(b, f)."""
    slots: Tensor
    """(b f k,): the row of each corner's vertex among all vertices of the batch; 0 in padding."""
    vertices: Tensor
    """(b, v, 3): bins."""
    corners: Tensor
    """(b, f, k, 3): bins."""
    links: "Links"


class Links(NamedTuple):
    """Which faces hear which; symmetric."""

    places: Tensor
    """(b, f, n): the row of each neighbour among all faces of the batch."""
    linked: Tensor
    """(b, f, n): whether there is one."""
    degree: Tensor
    """(b, f, 1): how many there are, at least 1."""


# -- what faces tell each other -------------------------------------------------------------------


def links_of(neighbours: Tensor, mask: Tensor) -> Links:
    """Links where both sides name each other, once: a table cut at n may name only one way."""
    batch, count = mask.shape
    table = torch.where(mask[..., None], neighbours, -1)
    own = torch.arange(count, device=mask.device)[:, None]
    offset = count * torch.arange(batch, device=mask.device)[:, None, None]
    places = table.clamp_min(0) + offset
    mutual = (table.flatten(0, 1)[places] == own[..., None]).any(-1)
    earlier = torch.ones(table.shape[-1], table.shape[-1], device=mask.device).tril(-1).bool()
    repeated = ((table[..., :, None] == table[..., None, :]) & earlier).any(-1)
    linked = (table >= 0) & (table != own) & mutual & ~repeated
    return Links(places, linked, linked.sum(-1, keepdim=True).clamp_min(1))


def neighbour_sum(messages: Tensor, places: Tensor, linked: Tensor) -> Tensor:
    """(b, f, w) -> (b, f, w), one column of the table after the other: never (b, f, n, w)."""
    rows, total = messages.flatten(0, 1), torch.zeros_like(messages)
    for place, there in zip(places.unbind(-1), linked.unbind(-1)):
        total = total + torch.where(there[..., None], rows[place], 0)
    return total


class NeighbourSum(torch.autograd.Function):
    """`neighbour_sum`, whose backward is itself: links are symmetric, so nothing is scattered."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, places: Tensor, linked: Tensor) -> Tensor:
        ctx.save_for_backward(places, linked)
        return neighbour_sum(messages, places, linked)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        places, linked = ctx.saved_tensors
        return neighbour_sum(gradients[0], places, linked), None, None


def hear_neighbours(links: Links) -> Hear:
    """A face's own message beside the mean of its neighbours' (GraphSAGE, arXiv 1706.02216)."""

    def hear(messages: Tensor) -> Tensor:
        total: Any = NeighbourSum.apply(messages, links.places, links.linked)
        return torch.cat((messages, total / links.degree.to(messages.dtype)), -1)

    return hear


def hear_window(mask: Tensor, reach: int) -> Hear:
    """The messages of the faces up to `reach` before and after, side by side; padding is zero."""

    def hear(messages: Tensor) -> Tensor:
        padded = F.pad(torch.where(mask[..., None], messages, 0), (0, 0, reach, reach))
        count = mask.shape[1]
        return torch.cat([padded[:, i : i + count] for i in range(2 * reach + 1)], -1)

    return hear


def zeroed(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Norm(nn.RMSNorm):
    """With its weight in the features' own precision, as the fused kernels want it."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Layer(nn.Module):
    """x + out(gelu(heard messages)), then x + a gated MLP."""

    def __init__(self, dim: int, message_dim: int, heard: int) -> None:
        super().__init__()
        self.message_norm = Norm(dim)
        self.to_message = nn.Linear(dim, message_dim)
        self.from_messages = zeroed(nn.Linear(heard * message_dim, dim))
        self.norm = Norm(dim)
        self.widen = nn.Linear(dim, 2 * dim)
        self.narrow = zeroed(nn.Linear(dim, dim))

    def forward(self, x: Tensor, hear: Hear) -> Tensor:
        messages = self.to_message(self.message_norm(x))
        x = x + self.from_messages(F.gelu(hear(messages)))
        gate, value = self.widen(self.norm(x)).chunk(2, -1)
        return x + self.narrow(F.gelu(gate) * value)


# -- places and bins ------------------------------------------------------------------------------


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


# -- the model ------------------------------------------------------------------------------------


def config_from_keywords(**keywords: Any) -> MeshAutoencoderConfig:
    """A configuration from its fields, or from names of older packages."""
    older = {"num_discrete_coors": "bins", "num_quantizers": "depth"}
    return MeshAutoencoderConfig(**{older.get(name, name): v for name, v in keywords.items()})


class MeshAutoencoder(Pretrained, nn.Module):
    """The tokenizer. Build it from a configuration, or from its fields as keywords."""

    Config = MeshAutoencoderConfig

    def __init__(self, config: MeshAutoencoderConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        if config is None:
            config = config_from_keywords(**keywords)
        elif keywords:
            config = replace(config, **keywords)
        self.config = config
        dim, corners = config.dim, config.corners
        self.octaves = octaves_of(config.bins)
        seen = corners * 3 * (1 + 2 * self.octaves) + corners + 4
        self.bottleneck = Position(config) if config.quantiser == "fsq" else Latent(config)

        def layers(count: int, heard: int) -> nn.ModuleList:
            return nn.ModuleList(Layer(dim, config.message_dim, heard) for _ in range(count))

        self.encoder_stem = nn.Linear(seen, dim)
        self.encoder = layers(config.encoder_layers, 2)
        self.encoder_norm = Norm(dim)
        self.to_words = zeroed(nn.Linear(dim, corners * self.bottleneck.width))
        self.decoder_stem = nn.Linear(corners * self.bottleneck.seen, dim)
        self.decoder = layers(config.decoder_layers, 2 * config.window + 1)
        self.decoder_norm = Norm(dim)
        self.head = zeroed(nn.Linear(dim, corners * 3 * 2))
        wider = self.bottleneck.scale / SHARPEST
        with torch.no_grad():
            self.head.bias.view(corners, 3, 2)[..., 1] = math.log(wider - 1)

    @property
    def codebook_size(self) -> int:
        """Codes of each level."""
        return self.config.codebook_size

    @property
    def depth(self) -> int:
        """Codes of a vertex."""
        return self.config.depth

    def forward(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        neighbours: Tensor | None = None,
    ) -> Reconstruction:
        mesh = self.read(vertices, faces, face_edges, neighbours)
        words, used = self.encode(mesh)
        with without_autocast(words):
            values, ids, quantiser_loss = self.bottleneck(mesh.vertices, words, used)
            values = at_corners(values, mesh)
        place, log_scale = self.decode(values, mesh.mask)
        errors = logistic_loss(mesh.corners, place, log_scale, self.config.bins)
        errors = torch.where(mesh.mask[..., None, None], errors, 0).sum((1, 2, 3))
        per_face = 3 * self.config.corners
        coordinate_loss = errors / (per_face * mesh.mask.sum(1)).clamp_min(1)
        return Reconstruction(
            coordinate_loss.mean() + quantiser_loss,
            coordinate_loss,
            quantiser_loss,
            blank(self.to_bins(place), mesh.mask),
            blank(mesh.corners, mesh.mask),
            self.codes(ids, mesh),
            mesh.mask,
        )

    @torch.no_grad()
    def tokenize(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        neighbours: Tensor | None = None,
    ) -> Tensor:
        """(b, f, k q) integers below `codebook_size`; -1 in padding."""
        mesh = self.read(vertices, faces, face_edges, neighbours)
        words, _ = self.encode(mesh)
        with without_autocast(words):
            return self.codes(self.bottleneck.to_ids(mesh.vertices, words), mesh)

    @torch.no_grad()
    def decode_codes(self, codes: Tensor) -> Decoded:
        """Codes (b, f, k q), or the same numbers as (b, f k, q), to the corners of faces.

        Corners with equal codes in one mesh come out equal, so surfaces have no cracks.
        """
        batch, corners, depth = codes.shape[0], self.config.corners, self.depth
        codes = codes.reshape(batch, -1, corners * depth)
        mask = (codes >= 0).all(-1)
        ids = torch.where(mask[..., None], codes, 0).clamp_max(self.codebook_size - 1)
        ids = ids.reshape(batch, -1, depth)
        with without_autocast(codes):
            values = self.bottleneck.ids_to_values(ids, full_precision(self.head.weight).dtype)
        place, _ = self.decode(values.unflatten(1, (-1, corners)), mask)
        # Padding has codes of its own here, or it would be averaged with the corners of code 0.
        apart = torch.where(mask[..., None], codes, -1).reshape(batch, -1, depth)
        place = merged(apart, place.flatten(1, 2), self.codebook_size).view_as(place)
        coordinates = geometry.undiscretise(self.to_bins(place), self.config.bins)
        return Decoded(torch.where(mask[..., None, None], coordinates, 0), mask)

    def decode_from_codes_to_faces(self, codes: Tensor, face_mask: Tensor | None = None) -> Decoded:
        """`decode_codes`, of those faces that `face_mask` (b, f) keeps."""
        if face_mask is None:
            return self.decode_codes(codes)
        codes = codes.reshape(*face_mask.shape, -1)
        return self.decode_codes(torch.where(face_mask[..., None], codes, -1))

    @torch.no_grad()
    def reconstruct(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        neighbours: Tensor | None = None,
    ) -> Decoded:
        """The corners of faces after a trip through their codes."""
        return self.decode_codes(self.tokenize(vertices, faces, face_edges, neighbours))

    def commit(self, at: CommitContext) -> None:
        """Apply the statistics of the step, where the quantiser keeps any."""
        if isinstance(self.bottleneck, Latent):
            self.bottleneck.quantiser.commit(at)

    def read(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None,
        neighbours: Tensor | None,
    ) -> Mesh:
        """Bins, masks and links. Without `neighbours` these are found on the host."""
        self.check(vertices, faces, face_edges, neighbours)
        if neighbours is None and face_edges is not None:
            neighbours = geometry.neighbours_from_edges(face_edges, faces.shape[1])
        elif neighbours is None:
            neighbours = geometry.face_neighbours(faces)
        mask = (faces >= 0).all(-1)
        bins = geometry.discretise(full_precision(vertices), self.config.bins)
        offset = bins.shape[1] * torch.arange(bins.shape[0], device=bins.device)[:, None, None]
        slots = torch.where(mask[..., None], faces + offset, 0)
        corners = bins.flatten(0, 1)[slots]
        return Mesh(mask, slots.flatten(), bins, corners, links_of(neighbours, mask))

    def encode(self, mesh: Mesh) -> tuple[Tensor, Tensor]:
        """A word for each vertex (b, v, w) and whether a face uses it (b, v)."""
        x, hear = self.encoder_stem(self.face_features(mesh.corners)), hear_neighbours(mesh.links)
        for layer in self.encoder:
            x = layer(x, hear)
        with without_autocast(x):
            words = self.to_words(full_precision(self.encoder_norm(x)))
            return self.mean_at_vertices(words, mesh)

    def face_features(self, corners: Tensor) -> Tensor:
        """(b, f, k, 3) bins -> (b, f, c): what the target holds and no more."""
        where = geometry.undiscretise(corners, self.config.bins).to(self.head.weight.dtype)
        known = (
            waves(where, self.octaves).flatten(2),
            geometry.corner_angles(where),
            geometry.face_areas(where)[..., None].sqrt(),
            geometry.face_normals(where),
        )
        return torch.cat(known, -1).to(self.head.weight.dtype)

    def mean_at_vertices(self, words: Tensor, mesh: Mesh) -> tuple[Tensor, Tensor]:
        batch, count = mesh.vertices.shape[:2]
        rows = words.view(-1, self.bottleneck.width)
        real = mesh.mask[..., None].expand(-1, -1, self.config.corners).reshape(-1, 1)
        means = mean_by_slot(rows, real.to(rows.dtype), mesh.slots, batch * count)
        means = means.view(batch, count, -1)
        return means[..., :-1], means[..., -1] > 0

    def decode(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, f, k, c) -> for each coordinate the place and the log of the scale, in bins."""
        x = self.decoder_stem(self.bottleneck.features(values).flatten(2))
        hear = hear_window(mask, self.config.window)
        for layer in self.decoder:
            x = layer(x, hear)
        with without_autocast(x):
            said = self.head(full_precision(self.decoder_norm(x)))
            correction, scale = said.unflatten(-1, (-1, 3, 2)).unbind(-1)
            log_scale = math.log(SHARPEST) + F.softplus(scale)
            return self.bottleneck.place(values, correction), log_scale

    def to_bins(self, place: Tensor) -> Tensor:
        return place.round().long().clamp(0, self.config.bins - 1)

    def codes(self, ids: Tensor, mesh: Mesh) -> Tensor:
        batch, count = mesh.mask.shape
        found = ids.flatten(0, 1)[mesh.slots].view(batch, count, -1)
        return torch.where(mesh.mask[..., None], found, -1)

    def check(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None,
        neighbours: Tensor | None,
    ) -> None:
        batch, corners = vertices.shape[0], self.config.corners
        if vertices.ndim != 3 or vertices.shape[2] != 3:
            raise ValueError(f"expected vertices (b, v, 3), not {tuple(vertices.shape)}")
        if faces.ndim != 3 or faces.shape[::2] != (batch, corners):
            raise ValueError(
                f"expected faces ({batch}, f, {corners}), not {tuple(faces.shape)}:"
                " `corners` is 4 for quads"
            )
        if face_edges is not None and (face_edges.ndim != 3 or face_edges.shape[::2] != (batch, 2)):
            raise ValueError(
                f"expected face_edges ({batch}, e, 2), not {tuple(face_edges.shape)}:"
                " give a table of neighbours by its name"
            )
        if neighbours is not None and (
            neighbours.ndim != 3 or neighbours.shape[:2] != faces.shape[:2]
        ):
            raise ValueError(
                f"expected neighbours {(*faces.shape[:2], 'n')}, not {tuple(neighbours.shape)}"
            )


def at_corners(values: Tensor, mesh: Mesh) -> Tensor:
    """(b, v, c) -> (b, f, k, c). The gradient of index_select is an index_add."""
    batch, count = mesh.mask.shape
    found = values.flatten(0, 1).index_select(0, mesh.slots)
    return found.view(batch, count, -1, values.shape[-1])


def blank(bins: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[..., None, None], bins, -1)

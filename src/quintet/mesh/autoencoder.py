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
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.pretrained import Pretrained
from quintet.mesh import geometry
from quintet.mesh.bottleneck import (
    Latent,
    Position,
    logistic_loss,
    mean_by_slot,
    merged,
    octaves_of,
    waves,
)
from quintet.mesh.config import MeshAutoencoderConfig
from quintet.mesh.graph import (
    Layer,
    Links,
    Norm,
    Stem,
    hear_neighbours,
    hear_window,
    links_of,
    zeroed,
)
from quintet.mesh.keywords import autoencoder_config
from quintet.nn.quantise import full_precision, without_autocast
from quintet.nn.statistics import CommitContext

SHARPEST = 0.05
"""The smallest scale of a logistic, in bins: below it there is only rounding noise to gain."""


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
    links: Links


class MeshAutoencoder(Pretrained, nn.Module):
    """The tokenizer. Build it from a configuration, or from its fields as keywords."""

    Config = MeshAutoencoderConfig

    def __init__(self, config: MeshAutoencoderConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        if config is None:
            config = autoencoder_config(**keywords)
        elif keywords:
            config = replace(config, **keywords)
        self.config = config
        dim, corners = config.dim, config.corners
        self.octaves = octaves_of(config.bins)
        seen = corners * 3 * (1 + 2 * self.octaves) + corners + 4
        self.bottleneck = Position(config) if config.quantiser == "fsq" else Latent(config)

        def layers(count: int, heard: int) -> nn.ModuleList:
            return nn.ModuleList(Layer(dim, config.message_dim, heard) for _ in range(count))

        self.encoder_stem = Stem(seen, dim)
        self.encoder = layers(config.encoder_layers, 2)
        self.encoder_norm = Norm(dim)
        self.to_words = zeroed(nn.Linear(dim, corners * self.bottleneck.width))
        self.decoder_stem = Stem(corners * self.bottleneck.seen, dim)
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
        count = math.prod(codes.shape[1:]) // (corners * depth)
        codes = codes.reshape(batch, count, corners * depth)
        mask = (codes >= 0).all(-1)
        ids = torch.where(mask[..., None], codes, 0).clamp_max(self.codebook_size - 1)
        ids = ids.view(batch, count, corners, depth)
        with without_autocast(codes):
            values = self.bottleneck.ids_to_values(ids, full_precision(self.head.weight).dtype)
        place, _ = self.decode(values, mask)
        # Padding has codes of its own here, or it would be averaged with the corners of code 0.
        apart = torch.where(mask[..., None], codes, -1).view(batch, count * corners, depth)
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

"""MeshAutoencoder: meshes to codes at their vertices and back (MeshGPT, arXiv 2311.15475).

Shapes: b meshes, v vertices, f faces of k corners (a face with a corner of -1 is padding), n
neighbours of a face (-1 is none), q = `depth` codes of a vertex, d = `dim`.

    corners in bins, angles, area, normal (b, f, .) -> graph layers -> faces (b, f, d)
    faces -> corner features -> mean at each vertex -> quantiser, with the vertex position
    codes (b, f, k q) -> values at the corners -> layers over the face sequence -> mean and scale

Vertex positions bypass the network. By default residual FSQ rounds the position of a vertex
(`PositionQuantiser`): the encoder shifts it by at most a fraction of the finest level and the
decoder by one level, so a code means the same position in every mesh, which makes the codes easier
to model. Each coordinate is a discretised logistic (PixelCNN++, arXiv 1701.05517).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.calls import MESH_AUTOENCODER_CALL, call_keywords
from quintet.compat.models import MESH_AUTOENCODER, model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.mesh import geometry
from quintet.mesh.autoencoder.bottleneck import (
    LatentQuantiser,
    PositionQuantiser,
    average_equal_codes,
    logistic_loss,
    scatter_mean,
)
from quintet.mesh.autoencoder.compact import CompactDecoder
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.autoencoder.graph import (
    Adjacency,
    Layer,
    Stem,
    adjacency,
    neighbour_aggregate,
    window_aggregate,
)
from quintet.nn.attention import zero_init
from quintet.nn.norms import RMSNorm
from quintet.nn.packing import mean_by_owner, owners
from quintet.nn.precision import FullPrecisionLinear, full_precision, without_autocast
from quintet.nn.statistics import CommitContext

MIN_SCALE = 0.05
"""Smallest scale of a logistic, in bins; below it the likelihood gains only rounding noise."""


class Reconstruction(NamedTuple):
    loss: Tensor
    """0-dim: the mean over meshes of `coordinate_loss`, plus `quantiser_loss`."""
    coordinate_loss: Tensor
    """(b,): nats per coordinate, averaged over each mesh."""
    quantiser_loss: Tensor
    """0-dim, already weighted."""
    bins: Tensor
    """(b, f, k, 3): the most likely bin of each coordinate; -1 in padding."""
    target: Tensor
    """(b, f, k, 3): the bin of each coordinate; -1 in padding."""
    codes: Tensor
    """(b, f, k q): corner by corner, coarsest first; -1 in padding."""
    mask: Tensor
    """(b, f): false in padding."""


class Decoded(NamedTuple):
    coordinates: Tensor
    """(b, f, k, 3), fp32: bin centres in -1..1, equal for equal codes; 0 in padding."""
    mask: Tensor
    """(b, f): false in padding."""


class Mesh(NamedTuple):
    """Encoder input: a batch of meshes; packed ones have b = 1."""

    num_meshes: int
    owner: Tensor
    """(b, f): the mesh of each face; -1 in padding."""
    vertex_owner: Tensor
    """(b, v): the mesh of each vertex; -1 in padding."""
    mask: Tensor
    """(b, f): false in padding."""
    slots: Tensor
    """(b f k,): row of each corner's vertex among all vertices of the batch; 0 in padding."""
    vertices: Tensor
    """(b, v, 3): bins."""
    corners: Tensor
    """(b, f, k, 3): bins."""
    edges: Adjacency


class MeshAutoencoder(Pretrained, nn.Module):
    """Mesh tokenizer, built from a configuration or from its fields as keywords."""

    Config = MeshAutoencoderConfig

    def __init__(self, config: MeshAutoencoderConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = config or MeshAutoencoderConfig()
        self.config = config = updated(config, model_keywords(MESH_AUTOENCODER, keywords, config))
        self.compact = CompactDecoder(config) if config.quantiser == "pointer" else None
        if self.compact is None:
            self.build()

    def build(self) -> None:
        """Networks of the vertex quantisers."""
        config = self.config
        dim, corners = config.dim, config.corners
        self.octaves = geometry.num_octaves(config.bins)
        in_features = corners * 3 * (1 + 2 * self.octaves) + corners + 4
        quantiser = PositionQuantiser if config.quantiser == "fsq" else LatentQuantiser
        self.bottleneck = quantiser(config)

        def layers(count: int, num_messages: int) -> nn.ModuleList:
            return nn.ModuleList(Layer(dim, config.message_dim, num_messages) for _ in range(count))

        self.encoder_stem = Stem(in_features, dim)
        self.encoder = layers(config.encoder_layers, 2)
        self.encoder_norm = RMSNorm(dim, eps=1e-6)
        latent_dim = self.bottleneck.latent_dim
        self.to_vertex_features = zero_init(FullPrecisionLinear(dim, corners * latent_dim))
        self.decoder_stem = Stem(corners * self.bottleneck.feature_dim, dim)
        self.decoder = layers(config.decoder_layers, 2 * config.window + 1)
        self.decoder_norm = RMSNorm(dim, eps=1e-6)
        self.head = zero_init(FullPrecisionLinear(dim, corners * 3 * 2))
        ratio = self.bottleneck.initial_scale / MIN_SCALE
        with torch.no_grad():
            self.head.bias.view(corners, 3, 2)[..., 1] = math.log(ratio - 1)

    @property
    def codebook_size(self) -> int:
        """Codes per residual level."""
        return self.config.codebook_size

    @property
    def depth(self) -> int:
        """Codes per vertex."""
        return self.config.depth

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """With keywords alone, `autoencoder(vertices=…, faces=…)`: the loss of a batch, for a
        custom training loop."""
        keywords = keywords if args else call_keywords(MESH_AUTOENCODER_CALL, keywords)
        output = super().__call__(*args, **keywords)
        return output if args else output.loss

    def forward(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        neighbours: Tensor | None = None,
        lengths: Tensor | None = None,
        ranks: Tensor | None = None,
    ) -> Reconstruction:
        """Reconstruct vertices (b, v, 3) and faces (b, f, k), padded with -1.

        With `lengths` (m, 2), the faces and vertices of each mesh, b is 1 and m meshes are packed
        without padding between them. Faces and neighbours are then rows of the batch. `ranks` are
        the `vertex_ranks` (b, f, k) that pointers need.
        """
        mesh = self.prepare(vertices, faces, face_edges, neighbours, lengths)
        if self.compact is not None:
            return self.predict(self.compact, mesh, self.ranks_of(faces, ranks))
        vertex_features, used = self.encode(mesh)
        with without_autocast(vertex_features):
            owner = torch.where(used, mesh.vertex_owner, -1)
            quantised = self.bottleneck(mesh.vertices, vertex_features, owner, mesh.num_meshes)
            values, ids, quantiser_loss = quantised
            values = at_corners(values, mesh)
        position, log_scale = self.decode(values, mesh.owner)
        nll = logistic_loss(mesh.corners, position, log_scale, self.config.bins)
        codes, bins = self.codes(ids, mesh), self.nearest_bin(position)
        return reconstruction(mesh, nll, bins, codes, quantiser_loss)

    def predict(self, compact: CompactDecoder, mesh: Mesh, ranks: Tensor) -> Reconstruction:
        """`forward` with pointers: the bits that they leave out."""
        codes, cells = compact.encode(mesh.corners, distinct_padding(mesh), ranks, mesh.owner)
        logits = compact(cells, mesh.owner, mesh.num_meshes)
        nll = compact.loss(logits, mesh.corners - cells.low)
        codes = torch.where(mesh.mask[..., None], codes, -1)
        return reconstruction(mesh, nll, cells.low + logits.argmax(-1), codes)

    def ranks_of(self, faces: Tensor, ranks: Tensor | None) -> Tensor:
        """Without `ranks`, they are counted on the host."""
        if ranks is not None:
            return ranks.long()
        tables = [geometry.vertex_ranks(t, self.config.reach) for t in faces.cpu().numpy()]
        return torch.from_numpy(np.stack(tables)).to(faces.device)

    @torch.no_grad()
    def tokenize(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        neighbours: Tensor | None = None,
        lengths: Tensor | None = None,
        ranks: Tensor | None = None,
    ) -> Tensor:
        """(b, f, k q) integers below `codebook_size`; -1 in padding. Also (f, k q) of one mesh."""
        if vertices.ndim == faces.ndim == 2:
            tables = (None if t is None else t[None] for t in (face_edges, neighbours))
            return self.tokenize(vertices[None], faces[None], *tables)[0]
        mesh = self.prepare(vertices, faces, face_edges, neighbours, lengths)
        if self.compact is not None:
            ranks = self.ranks_of(faces, ranks)
            codes, _ = self.compact.encode(mesh.corners, distinct_padding(mesh), ranks, mesh.owner)
            return torch.where(mesh.mask[..., None], codes, -1)
        vertex_features, _ = self.encode(mesh)
        with without_autocast(vertex_features):
            return self.codes(self.bottleneck.to_ids(mesh.vertices, vertex_features), mesh)

    @torch.no_grad()
    def decode_codes(self, codes: Tensor) -> Decoded:
        """Decode codes (b, f, k q), or the same as (b, f k, q), to the corners of faces.

        Corners with equal codes in one mesh are equal, so surfaces have no cracks.
        """
        batch, corners, depth = codes.shape[0], self.config.corners, self.depth
        count = math.prod(codes.shape[1:]) // (corners * depth)
        codes = codes.reshape(batch, count, corners * depth)
        mask = (codes >= 0).all(-1)
        ids = torch.where(mask[..., None], codes, 0).clamp_max(self.codebook_size - 1)
        if self.compact is not None:
            number = torch.arange(batch, device=codes.device)[:, None]
            owner = torch.where(mask, number, -1)
            cells = self.compact.cells(ids, owner)
            logits = self.compact(cells, owner, batch)
            bins = cells.low + logits.argmax(-1)
        else:
            ids = ids.view(batch, count, corners, depth)
            with without_autocast(codes):
                values = self.bottleneck.ids_to_values(ids, full_precision(self.head.weight).dtype)
            position, _ = self.decode(values, torch.where(mask, 0, -1))
            # Padding gets code -1, or it would be averaged with the corners of code 0.
            distinct = torch.where(mask[..., None], codes, -1).view(batch, count * corners, depth)
            merged = average_equal_codes(distinct, position.flatten(1, 2), self.codebook_size)
            bins = self.nearest_bin(merged.view_as(position))
        coordinates = geometry.undiscretise(bins, self.config.bins)
        return Decoded(torch.where(mask[..., None, None], coordinates, 0), mask)

    def decode_from_codes_to_faces(self, codes: Tensor, face_mask: Tensor | None = None) -> Decoded:
        """`decode_codes` of the faces selected by `face_mask` (b, f)."""
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
        """Encode to codes and decode to the corners of faces."""
        return self.decode_codes(self.tokenize(vertices, faces, face_edges, neighbours))

    def commit(self, context: CommitContext) -> None:
        """Apply the codebook statistics of the step, if the quantiser has any."""
        if self.compact is None and isinstance(self.bottleneck, LatentQuantiser):
            self.bottleneck.quantiser.commit(context)

    def prepare(
        self,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None,
        neighbours: Tensor | None,
        lengths: Tensor | None = None,
    ) -> Mesh:
        """Bins, masks and adjacency. Without `neighbours`, adjacency is computed on the host."""
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
        if lengths is None:
            count, number = len(faces), torch.arange(len(faces), device=faces.device)[:, None]
            owner, vertex_owner = number.expand_as(mask), number.expand(bins.shape[:2])
        else:
            count, (num_faces, num_vertices) = len(lengths), lengths.unbind(1)
            owner = owners(num_faces, faces.shape[1])[None]
            vertex_owner = owners(num_vertices, bins.shape[1])[None]
        edges = adjacency(neighbours, mask)
        owner = torch.where(mask, owner, -1)
        return Mesh(count, owner, vertex_owner, mask, slots.flatten(), bins, corners, edges)

    def encode(self, mesh: Mesh) -> tuple[Tensor, Tensor]:
        """Vertex features (b, v, w), and which vertices belong to a face (b, v)."""
        x = self.encoder_stem(self.face_features(mesh.corners))
        aggregate = neighbour_aggregate(mesh.edges)
        for layer in self.encoder:
            x = layer(x, aggregate)
        with without_autocast(x):
            vertex_features = self.to_vertex_features(full_precision(self.encoder_norm(x)))
            return self.average_at_vertices(vertex_features, mesh)

    def face_features(self, corners: Tensor) -> Tensor:
        """(b, f, k, 3) bins -> (b, f, c), computed from the binned target alone."""
        coordinates = geometry.undiscretise(corners, self.config.bins).to(self.head.weight.dtype)
        features = (
            geometry.fourier_features(coordinates, self.octaves).flatten(2),
            geometry.corner_angles(coordinates),
            geometry.face_areas(coordinates)[..., None].sqrt(),
            geometry.face_normals(coordinates),
        )
        return torch.cat(features, -1).to(self.head.weight.dtype)

    def average_at_vertices(self, vertex_features: Tensor, mesh: Mesh) -> tuple[Tensor, Tensor]:
        batch, count = mesh.vertices.shape[:2]
        rows = vertex_features.view(-1, self.bottleneck.latent_dim)
        real = mesh.mask[..., None].expand(-1, -1, self.config.corners).reshape(-1, 1)
        means = scatter_mean(rows, real.to(rows.dtype), mesh.slots, batch * count)
        means = means.view(batch, count, -1)
        return means[..., :-1], means[..., -1] > 0

    def decode(self, values: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """(b, f, k, c) -> mean and log scale of each coordinate, in bins.

        `owner` (b, f): the mesh of each face, -1 in padding.
        """
        x = self.decoder_stem(self.bottleneck.features(values).flatten(2))
        aggregate = window_aggregate(owner, self.config.window)
        for layer in self.decoder:
            x = layer(x, aggregate)
        with without_autocast(x):
            output = self.head(full_precision(self.decoder_norm(x)))
            correction, scale = output.unflatten(-1, (-1, 3, 2)).unbind(-1)
            log_scale = math.log(MIN_SCALE) + F.softplus(scale)
            return self.bottleneck.position(values, correction), log_scale

    def nearest_bin(self, position: Tensor) -> Tensor:
        return position.round().long().clamp(0, self.config.bins - 1)

    def codes(self, ids: Tensor, mesh: Mesh) -> Tensor:
        batch, count = mesh.mask.shape
        gathered = ids.flatten(0, 1)[mesh.slots].view(batch, count, -1)
        return torch.where(mesh.mask[..., None], gathered, -1)

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
                " pass a neighbour table as neighbours="
            )
        if neighbours is not None and (
            neighbours.ndim != 3 or neighbours.shape[:2] != faces.shape[:2]
        ):
            raise ValueError(
                f"expected neighbours {(*faces.shape[:2], 'n')}, not {tuple(neighbours.shape)}"
            )


def reconstruction(
    mesh: Mesh, nll: Tensor, bins: Tensor, codes: Tensor, quantiser_loss: Tensor | None = None
) -> Reconstruction:
    """From the negative log-likelihoods (b, f, k, 3) and the most likely bins."""
    owner = mesh.owner.flatten()
    coordinate = mean_by_owner(nll.mean((2, 3)).flatten(), owner, mesh.num_meshes)
    loss, mask = coordinate.mean(), mesh.mask
    if quantiser_loss is None:
        quantiser_loss = torch.zeros_like(loss)
    else:
        loss = loss + quantiser_loss
    bins, target = (torch.where(mask[..., None, None], x, -1) for x in (bins, mesh.corners))
    return Reconstruction(loss, coordinate, quantiser_loss, bins, target, codes, mask)


def at_corners(values: Tensor, mesh: Mesh) -> Tensor:
    """(b, v, c) -> (b, f, k, c). The gradient of index_select is an index_add."""
    batch, count = mesh.mask.shape
    gathered = values.flatten(0, 1).index_select(0, mesh.slots)
    return gathered.view(batch, count, -1, values.shape[-1])


def distinct_padding(mesh: Mesh) -> Tensor:
    """(b f k,): `slots`, but another number for each corner in padding."""
    real = mesh.mask[..., None].expand_as(mesh.corners[..., 0]).flatten()
    padding = mesh.vertices.shape[0] * mesh.vertices.shape[1]
    return torch.where(real, mesh.slots, padding + torch.arange(len(real), device=real.device))


Model = MeshAutoencoder

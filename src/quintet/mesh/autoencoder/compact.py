"""Decoder of codes with pointers (`pointers.py`): it predicts the bits that the codes leave out.

Shapes: b meshes, f faces of k corners, n = b f k corners, o = 2 ** (bits - cell_bits) offsets.

    cell of each corner's vertex, missing bits (b, f, k, .) -> layers over the face sequence and the
    vertices that faces share -> logits of the offset in the cell (b, f, k, 3, o), mean at a point

The codes are a fixed function of the mesh; there is no encoder. The decoder weighs two hints by
context: how often a coordinate is known to occur in the mesh, and how often its mirror image
(furniture is aligned and symmetric).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.mesh import geometry
from quintet.mesh.autoencoder.bottleneck import scatter_mean
from quintet.mesh.autoencoder.config import MeshAutoencoderConfig
from quintet.mesh.autoencoder.graph import Aggregate, Layer, Stem, window_aggregate
from quintet.mesh.autoencoder.pointers import Fields, PointerCodes, refine
from quintet.mesh.geometry import fourier_features, num_octaves
from quintet.nn.attention import zero_init
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import FullPrecisionLinear, full_precision, without_autocast

HINTS = 2
"""Numbers that are known of each offset."""


class Cells(NamedTuple):
    """What the codes say of each corner."""

    low: Tensor
    """(b, f, k, 3): the lowest bin of the cell."""
    missing: Tensor
    """(b, f, k): bits per axis that are not known: the cell has 2 ** missing bins per axis."""
    point: Tensor
    """(n,): the point of each corner, below n."""


class Encoded(NamedTuple):
    codes: Tensor
    """(b, f, k)."""
    cells: Cells


class CompactDecoder(nn.Module):
    def __init__(self, config: MeshAutoencoderConfig) -> None:
        super().__init__()
        self.codebook = PointerCodes(config)
        self.bins, self.corners, self.window = config.bins, config.corners, config.window
        self.bits, self.octaves = self.codebook.sizes.bits, num_octaves(config.bins)
        self.offsets = 2 ** (self.bits - config.cell_bits)
        features = 3 * (1 + 2 * self.octaves) + self.bits + 1
        self.stem = Stem(config.corners * features, config.dim)
        messages = 2 * config.window + 1 + config.corners
        self.layers = nn.ModuleList(
            Layer(config.dim, config.message_dim, messages) for _ in range(config.decoder_layers)
        )
        self.norm = RMSNorm(config.dim, eps=1e-6)
        outputs = config.corners * 3 * (self.offsets + HINTS)
        self.head = zero_init(FullPrecisionLinear(config.dim, outputs))

    def encode(self, corners: Tensor, vertex: Tensor, ranks: Tensor, owner: Tensor) -> Encoded:
        """Codes of bins (b, f, k, 3). `vertex` (n,): a number of each corner's vertex, distinct in
        padding; `ranks` (b, f, k); `owner` (b, f) as in `forward`."""
        rank, bins = ranks.flatten(), corners.flatten(0, 2)
        room, owner = self.codebook.room(rank), at_corners(owner, ranks)
        refined = refine(vertex, rank < 0, room, owner, self.codebook.sizes)
        digits = (bins >> refined.shift[:, None]) & ((1 << refined.own_bits) - 1)[:, None]
        for slot, (helped, level) in enumerate(refined.extra()):
            bit = (bins[helped] >> (level - 1).clamp_min(0)[:, None]) & (level > 0)[:, None]
            digits = digits | bit << (refined.own_bits + slot)[:, None]
        codes = self.codebook.join(Fields(rank, room, digits))
        missing = refined.missing.view(ranks.shape)
        low = corners >> missing[..., None] << missing[..., None]
        return Encoded(codes.view(ranks.shape), Cells(low, missing, refined.point))

    def cells(self, codes: Tensor, owner: Tensor) -> Cells:
        """What codes (b, f, k) say. Vertices are counted on the host."""
        fields = self.codebook.split(codes.flatten())
        ranks = torch.where(owner[..., None] >= 0, fields.rank.view(codes.shape), -1)
        numbers = [geometry.points_of(table) for table in ranks.cpu().numpy()]
        points = torch.from_numpy(np.stack(numbers)).to(codes.device)
        offset = ranks[0].numel() * torch.arange(len(ranks), device=codes.device)
        vertex = (points + offset[:, None, None]).flatten()
        new, meshes = torch.zeros_like(vertex, dtype=torch.bool), at_corners(owner, codes)
        refined = refine(vertex, new, fields.room, meshes, self.codebook.sizes)
        own = fields.digits & ((1 << refined.own_bits) - 1)[:, None]
        low = torch.zeros_like(own).index_add(0, refined.point, own << refined.shift[:, None])
        for slot, (helped, level) in enumerate(refined.extra()):
            bit = fields.digits >> (refined.own_bits + slot)[:, None] & (level > 0)[:, None]
            low = low.index_add(0, helped, bit << (level - 1).clamp_min(0)[:, None])
        low = low[refined.point].view(*codes.shape, 3)
        return Cells(low, refined.missing.view(codes.shape), refined.point)

    def forward(self, cells: Cells, owner: Tensor, count: int) -> Tensor:
        """Logits (b, f, k, 3, o) of the offset in the cell; -inf beyond it.

        `owner` (b, f): which of the `count` meshes a face is of, -1 in padding.
        """
        x = self.stem(self.features(cells))
        aggregate = self.aggregate(cells, owner)
        for layer in self.layers:
            x = layer(x, aggregate)
        real = (owner >= 0)[..., None].expand(cells.missing.shape)
        with without_autocast(x):
            output = self.head(full_precision(self.norm(x))).flatten(0, 1)
            output = output.unflatten(-1, (self.corners, 3, -1)).flatten(0, 1)
            rows = scatter_mean(
                output.flatten(1), real.reshape(-1, 1).to(output.dtype), cells.point, len(output)
            )
            output = rows.index_select(0, cells.point)[:, :-1].view_as(output)
            logits, weights = output.split((self.offsets, HINTS), -1)
            hints = self.occurrences(cells, real, owner, count).to(logits.dtype)
            logits = (logits + (hints * weights[:, :, None]).sum(-1)).view(*cells.low.shape, -1)
        offset = torch.arange(self.offsets, device=logits.device)
        return logits.masked_fill(offset >= (1 << cells.missing)[..., None, None], float("-inf"))

    def loss(self, logits: Tensor, offset: Tensor) -> Tensor:
        """(b, f, k, 3): negative log-likelihood; 0 where no bit is missing."""
        nll = F.cross_entropy(logits.flatten(0, -2), offset.flatten(), reduction="none")
        return nll.view(offset.shape)

    def features(self, cells: Cells) -> Tensor:
        """(b, f, c): centre and size of the cells at the corners of a face."""
        dtype = self.stem.weight.dtype
        width = (1 << cells.missing)[..., None]
        centre = (2 * cells.low + width).to(dtype) / self.bins - 1
        sizes = torch.arange(self.bits + 1, device=width.device)
        size = (cells.missing[..., None] == sizes).to(dtype)
        return torch.cat((fourier_features(centre, self.octaves), size), -1).flatten(2)

    def aggregate(self, cells: Cells, owner: Tensor) -> Aggregate:
        """Messages of the faces around in the sequence, and the means at the own vertices."""
        window = window_aggregate(owner, self.window)
        real = (owner >= 0)[..., None].expand(cells.missing.shape).reshape(-1, 1)

        def aggregate(messages: Tensor) -> Tensor:
            rows = messages[:, :, None].expand(-1, -1, self.corners, -1).flatten(0, 2)
            rows = full_precision(rows)
            means = scatter_mean(rows, real.to(rows.dtype), cells.point, len(rows))[:, :-1]
            shared = means.index_select(0, cells.point).view(*messages.shape[:2], -1)
            return torch.cat((window(messages), shared.to(messages.dtype)), -1)

        return aggregate

    def occurrences(self, cells: Cells, real: Tensor, owner: Tensor, count: int) -> Tensor:
        """(n, 3, o, 2): logarithm of how many corners of the mesh are known to have a coordinate,
        and its mirror image."""
        low, device = cells.low.flatten(0, 2), owner.device
        mesh = at_corners(owner.clamp_min(0), cells.missing)[:, None] * 3
        mesh = mesh + torch.arange(3, device=device)
        known = (real & (cells.missing == 0)).reshape(-1, 1).expand(-1, 3)
        counts = torch.zeros(count * 3 * self.bins, device=device)
        counts = counts.index_add(0, (mesh * self.bins + low).flatten(), known.flatten().float())
        bounds = [
            low.new_full((count * 3,), start).scatter_reduce(
                0, mesh.flatten(), torch.where(known, low, start).flatten(), how
            )
            for start, how in ((self.bins, "amin"), (-1, "amax"))
        ]
        bins = low[..., None] + torch.arange(self.offsets, device=device)
        mirrored = (bounds[0] + bounds[1])[mesh][..., None] - bins
        places = torch.stack((bins, mirrored), -1).clamp(0, self.bins - 1)
        return counts[mesh[..., None, None] * self.bins + places].log1p()


def at_corners(owner: Tensor, corners: Tensor) -> Tensor:
    """(b, f) -> (n,), for corners (b, f, k)."""
    return owner[..., None].expand(corners.shape).flatten()

"""Corners as pointers to vertices: far fewer bits than the position at every corner.

On a closed mesh five corners of six are of a vertex that an earlier face had. Such a corner says
which, by its rank among the vertices used so far: the last used first, without those of its own
face. In place of the rank, the corner of a new vertex has its cell.

    new:   cell of the vertex, `cell_bits` bits per axis
    known: rank, and the next bits of the position: 2 per axis for a low rank, then 1, then none

So the bits of a position are spread over the corners of a vertex, high ones first. A vertex of many
faces has more room than its position needs; a vertex of few gets it. What is missing even then, the
decoder has to predict.

Shapes: n corners of a batch, in the order of the sequence; s bits that one can spare. A point is
what the decoder knows as one vertex: all of its corners, unless it was out of reach in between.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.mesh.autoencoder.config import MeshAutoencoderConfig


class Sizes(NamedTuple):
    bits: int
    """Bits of a coordinate."""
    spare: int
    """Most bits per axis that a corner of a known vertex holds."""


class Refinement(NamedTuple):
    """Where the bits of each position are; those of the three axes are at the same place."""

    point: Tensor
    """(n,): the point of each corner, as the number of its first corner."""
    own_bits: Tensor
    """(n,): bits that a corner adds to its own point, the lowest ones of its digits."""
    shift: Tensor
    """(n,): bits of the point that come after those."""
    helped: Tensor
    """(n, s): the point of each further bit of a corner."""
    level: Tensor
    """(n, s): which bit of that point it is, 1 is the lowest; 0 if it is not used."""
    missing: Tensor
    """(n,): bits of the point that no corner has."""

    def extra(self) -> Iterator[tuple[Tensor, Tensor]]:
        """`helped` and `level` of the first, second, ... further bit of each corner."""
        return zip(self.helped.unbind(1), self.level.unbind(1))


def refine(vertex: Tensor, new: Tensor, room: Tensor, owner: Tensor, sizes: Sizes) -> Refinement:
    """Distribute the bits of each vertex over corners (n,) that hold `room` bits per axis.

    First over the corners of the vertex, in their order; a `new` corner starts again at the highest
    bit. Then unused room goes to missing bits of the same mesh, `owner` (n,), highest bits first.
    """
    bits, order = sizes.bits, vertex.argsort(stable=True)
    sorted_vertex, sorted_room = vertex[order], room[order]
    first = new[order] | F.pad(sorted_vertex[1:] != sorted_vertex[:-1], (1, 0), value=True)
    index = torch.arange(len(vertex), device=vertex.device)
    start = torch.where(first, index, 0).cummax(0).values
    held = sorted_room.cumsum(0) - sorted_room
    unsort = lambda x: torch.empty_like(x).scatter(0, order, x)
    before = unsort(held - held[start]).clamp_max(bits)
    point = unsort(order[start])
    own_bits = torch.minimum(room, bits - before)
    total = torch.zeros_like(own_bits).index_add(0, point, own_bits)
    helped, level = share(
        room - own_bits, torch.where(point == index, bits - total, 0), owner, sizes
    )
    total = total.index_add(0, helped.flatten(), (level > 0).long().flatten())
    return Refinement(point, own_bits, bits - before - own_bits, helped, level, bits - total[point])


def share(spare: Tensor, lacking: Tensor, owner: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Match the spare bits of corners (n,) with those that points (n,) lack, mesh by mesh.

    The points (n, s) that get them, and which of their bits; 0 where it is not used.
    """
    count, device = len(spare), spare.device
    slots = torch.arange(sizes.spare, device=device)
    levels = torch.arange(sizes.bits, 0, -1, device=device)
    none = count  # greater than any mesh
    offers = torch.where(slots < spare[:, None], owner[:, None], none).flatten()
    wants = torch.where(lacking >= levels[:, None], owner, none).flatten()
    offering, offer = offers.sort(stable=True)
    wanting, want = wants.sort(stable=True)
    rank = torch.arange(len(offer), device=device) - torch.searchsorted(offering, offering)
    match = (torch.searchsorted(wanting, offering) + rank).clamp_max(len(want) - 1)
    used = (wanting[match] == offering) & (offering < none)
    point = torch.where(used, want[match] % count, 0)
    level = torch.where(used, sizes.bits - want[match] // count, 0)
    unsort = lambda x: torch.empty_like(x).scatter(0, offer, x).view(count, -1)
    return unsort(point), unsort(level)


class Fields(NamedTuple):
    """What a code says; all (n,) or (n, 3)."""

    rank: Tensor
    """-1: the vertex is new."""
    room: Tensor
    """Bits per axis."""
    digits: Tensor
    """(n, 3)."""


class PointerCodes:
    """Layout of the codebook: cells of new vertices, then ranks with 2, 1 and no bits per axis."""

    def __init__(self, config: MeshAutoencoderConfig) -> None:
        self.cell_bits, self.groups = config.cell_bits, config.pointer_groups
        self.sizes = Sizes(config.bins.bit_length() - 1, self.groups[0].bits)

    def room(self, ranks: Tensor) -> Tensor:
        """Bits per axis that a corner of each rank (n,) can hold."""
        room = torch.full_like(ranks, self.cell_bits)
        for low, high, bits, _ in self.groups:
            room = torch.where((ranks >= low) & (ranks < high), bits, room)
        return room

    def join(self, fields: Fields) -> Tensor:
        """Codes (n,)."""
        rank, room, digits = fields
        x, y, z = digits.unbind(-1)
        payload = (((x << room) | y) << room) | z
        code = payload
        for low, high, bits, offset in self.groups:
            inside = (rank >= low) & (rank < high)
            code = torch.where(inside, offset + ((rank - low) << 3 * bits) + payload, code)
        return code

    def split(self, codes: Tensor) -> Fields:
        """The inverse of `join`."""
        rank, room = torch.full_like(codes, -1), torch.full_like(codes, self.cell_bits)
        payload = codes
        for low, high, bits, offset in self.groups:
            inside = (codes >= offset) & (codes < offset + ((high - low) << 3 * bits))
            rank = torch.where(inside, low + ((codes - offset) >> 3 * bits), rank)
            room = torch.where(inside, bits, room)
            payload = torch.where(inside, (codes - offset) & ((1 << 3 * bits) - 1), payload)
        low_bits = (1 << room) - 1
        digits = (payload >> 2 * room, (payload >> room) & low_bits, payload & low_bits)
        return Fields(rank, room, torch.stack(digits, -1))

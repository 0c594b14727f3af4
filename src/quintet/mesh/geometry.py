"""Mesh geometry as pure functions: bins, adjacency, canonical order, angles and areas.

Shapes: vertices (v, 3), faces (f, k) of vertex indices with k = 3 or 4 (-1 in padding), corners
(..., k, 3) are the coordinates of each face. The last coordinate is vertical. Functions used by the
models take torch tensors on any device; those for ordering and adjacency are numpy, because they
run in data loading workers.
"""

import math
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.media.meshes.polygons import row_numbers
from quintet.nn.precision import full_precision

NEIGHBOURS = 8
BINS = 128
EXTENT = 0.95
_TINY = 1e-20  # squared lengths below this count as zero, to keep gradients finite

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


@overload
def discretise(x: Tensor, bins: int = ...) -> Tensor: ...
@overload
def discretise(x: Floats, bins: int = ...) -> Ints: ...
def discretise(x: Tensor | Floats, bins: int = BINS) -> Tensor | Ints:
    """The bin of each coordinate in -1..1; values out of range are clamped."""
    steps = (x + 1.0) * (bins / 2)
    if isinstance(steps, Tensor):
        return steps.floor().long().clamp(0, bins - 1)
    return np.floor(steps).astype(np.int64).clip(0, bins - 1)


@overload
def undiscretise(ids: Tensor, bins: int = ...) -> Tensor: ...
@overload
def undiscretise(ids: Ints, bins: int = ...) -> Floats: ...
def undiscretise(ids: Tensor | Ints, bins: int = BINS) -> Tensor | Floats:
    """The centre of each bin, in fp32."""
    real = ids.float() if isinstance(ids, Tensor) else ids.astype(np.float32)
    return (real + 0.5) * (2 / bins) - 1.0


def fourier_features(coordinates: Tensor, octaves: int) -> Tensor:
    """(..., c) in -1..1 -> (..., c (1 + 2 octaves)): coordinates, sines and cosines."""
    frequencies = math.pi * 2.0 ** torch.arange(octaves, device=coordinates.device)
    angles = coordinates[..., None] * frequencies.to(coordinates.dtype)
    return torch.cat((coordinates[..., None], angles.sin(), angles.cos()), -1).flatten(-2)


def num_octaves(bins: int) -> int:
    """Octaves down to a wavelength of two bins."""
    return max(1, math.ceil(math.log2(bins)))


def _norm(vectors: Tensor) -> Tensor:
    squares = vectors.square().sum(-1)
    real = squares > _TINY
    return torch.where(real, torch.where(real, squares, 1).sqrt(), 0)


def _unit(vectors: Tensor) -> Tensor:
    norm = _norm(vectors)[..., None]
    return torch.where(norm > 0, vectors / torch.where(norm > 0, norm, 1), 0)


def corner_angles(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (..., k): angle between the two edges at each corner, in radians.

    Zero at a corner that coincides with an adjacent one.
    """
    corners = full_precision(corners)
    ahead = _unit(corners.roll(-1, -2) - corners)
    back = _unit(corners.roll(1, -2) - corners)
    sine = _norm(torch.linalg.cross(ahead, back))
    cosine = (ahead * back).sum(-1)
    undefined = (sine == 0) & (cosine == 0)
    return torch.atan2(sine, torch.where(undefined, 1, cosine))


def _area_vectors(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (..., 3): normal vector with the area as its length.

    The vector area of a non-planar quad does not depend on the diagonal that splits it.
    """
    corners = full_precision(corners)
    edges = corners[..., 1:, :] - corners[..., :1, :]
    return torch.linalg.cross(edges[..., :-1, :], edges[..., 1:, :]).sum(-2) / 2


def face_areas(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (...)."""
    return _norm(_area_vectors(corners))


def face_normals(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (..., 3): unit normal, or zero if the face has no area."""
    return _unit(_area_vectors(corners))


def _numpy(array: Tensor | npt.NDArray[Any]) -> Ints:
    array = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
    return np.asarray(array, np.int64)


def _faces_by_edge(faces: Ints) -> tuple[Ints, Ints, Ints]:
    """Faces sorted by their vertex pairs, with the start and end of the group of each pair."""
    corners = faces.shape[1]
    first, second = np.triu_indices(corners, 1)
    lesser = np.minimum(faces[:, first], faces[:, second])
    greater = np.maximum(faces[:, first], faces[:, second])
    whole = np.all(faces >= 0, axis=1)
    used = whole[:, None] & (lesser < greater)
    owner = np.broadcast_to(np.arange(len(faces))[:, None], used.shape)[used]
    keys = lesser[used] * (faces.max(initial=0) + 1) + greater[used]
    # Stable: ascending faces within a pair. The sort of torch takes half as long as numpy's.
    sorted_keys, order = torch.from_numpy(keys).sort(stable=True)
    keys, owner = sorted_keys.numpy(), owner[order.numpy()]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    repeated = ~is_first
    repeated[1:] &= owner[1:] == owner[:-1]  # a face with a repeated vertex has a repeated pair
    if repeated.any():
        owner, is_first = owner[~repeated], is_first[~repeated]
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(is_first))
    group = np.cumsum(is_first) - 1
    return owner, starts[group], ends[group]


def _adjacent_pairs(faces: Ints, width: int) -> Ints:
    """Sorted unique keys `face * count + neighbour`.

    Only the first width + 1 faces of each vertex pair are considered: they include the lowest
    `width` neighbours of a face, and a fan of n faces around one edge costs O(n).
    """
    count = len(faces)
    owner, starts, ends = _faces_by_edge(faces)
    pairs: list[Ints] = []
    for offset in range(min(int((ends - starts).max(initial=0)), width + 1)):
        position = starts + offset
        inside = np.flatnonzero(position < ends)
        face, other = owner[inside], owner[position[inside]]
        different = face != other
        pairs.append(face[different] * count + other[different])
    return _distinct(np.concatenate(pairs)) if pairs else np.zeros(0, np.int64)


def _distinct(numbers: Ints) -> Ints:
    """Sorted, without repetitions. `np.unique` hashes them, which takes seven times as long."""
    numbers = np.sort(numbers)
    is_first = np.ones(len(numbers), bool)
    is_first[1:] = numbers[1:] != numbers[:-1]
    return numbers[is_first]


def _table(pairs: Ints, count: int, width: int) -> Ints:
    """(count, width): lowest neighbours of each face, ascending, padded with -1."""
    face, other = np.divmod(pairs, max(count, 1))
    lengths = np.bincount(face, minlength=count)
    rank = np.arange(len(face)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    fits = rank < width
    table = np.full((count, width), -1, np.int64)
    table[face[fits], rank[fits]] = other[fits]
    return table


def _map_batch(array: Ints, function: Any) -> Ints:
    """Apply a function to a matrix, or to each matrix of a batch."""
    if array.ndim == 2:
        return function(array)
    return np.stack([function(matrix) for matrix in array])


@overload
def face_neighbours(faces: Tensor, width: int = NEIGHBOURS) -> Tensor: ...
@overload
def face_neighbours(faces: Ints, width: int = NEIGHBOURS) -> Ints: ...
def face_neighbours(faces: Tensor | Ints, width: int = NEIGHBOURS) -> Tensor | Ints:
    """([b,] f, k) -> ([b,] f, width): faces that share at least two vertices with each.

    Ascending, padded with -1, truncated to the lowest `width`. Built from a sorted list of vertex
    pairs, without comparing all faces.
    """
    table = _map_batch(
        _numpy(faces), lambda one: _table(_adjacent_pairs(one, width), len(one), width)
    )
    return torch.from_numpy(table).to(faces.device) if isinstance(faces, Tensor) else table


def neighbours_from_edges(face_edges: Tensor, count: int, width: int = NEIGHBOURS) -> Tensor:
    """([b,] e, 2) -> ([b,] count, width): `face_neighbours` from pairs padded with -1."""

    def link(edges: Ints) -> Ints:
        used = (edges >= 0).all(1) & (edges[:, 0] != edges[:, 1])
        edges = edges[used]
        if edges.max(initial=-1) >= count:
            raise ValueError(f"face_edges refers to face {edges.max()} of {count} faces")
        return _table(_distinct(edges[:, 0] * count + edges[:, 1]), count, width)

    return torch.from_numpy(_map_batch(_numpy(face_edges), link)).to(face_edges.device)


def normalised(vertices: Floats) -> Floats:
    """Centre, and scale the longest side of the bounding box to -EXTENT..EXTENT."""
    low, high = vertices.min(0), vertices.max(0)
    half = float((high - low).max()) / 2
    return (vertices - (low + high) / 2) * (EXTENT / half if half > 0 else 1.0)


def cell_keys(vertices: Floats) -> Ints:
    """(v,): the cell of each vertex as one integer, ordered by z, y, x."""
    x, y, z = discretise(vertices).T
    return (z * BINS + y) * BINS + x


def _order(vertices: Floats, keys: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """By cell, and by exact coordinates within one; and whether each is the first of its cell."""
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(len(keys), bool)
    is_first[1:] = (ordered := keys[order])[1:] != ordered[:-1]
    if not is_first.all():  # few share a cell, and sorting by four columns takes long
        shared = ~is_first
        shared[:-1] |= shared[1:]
        rows = order[shared]
        order[shared] = rows[np.lexsort((*vertices[rows].T, keys[rows]))]
    return order, is_first


def numbered(faces: Ints, count: int) -> tuple[Ints, Ints]:
    """The vertices that are used, of `count`, and the faces by their positions among them."""
    is_used = np.zeros(count, bool)
    is_used[faces] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[faces]


def canonical(vertices: Floats, faces: Ints) -> tuple[Floats, Ints]:
    """Canonical order of a mesh, independent of the input order.

    Vertices are sorted by (z, y, x) of their bins (by exact coordinates within a cell, so that
    rounding noise changes no order); unused ones are dropped. Faces are rotated, never mirrored, to
    start at their lowest vertex, and sorted.
    """
    used, faces = numbered(faces, len(vertices))
    rows = vertices[used]
    order, _ = _order(rows, cell_keys(rows))
    position = np.empty(len(rows), np.int64)
    position[order] = np.arange(len(rows))
    renumbered = position[faces]
    corners = faces.shape[1]
    rotation = (renumbered.argmin(1)[:, None] + np.arange(corners)) % corners
    renumbered = np.take_along_axis(renumbered, rotation, 1)
    return rows[order], renumbered[np.argsort(row_numbers(renumbered, len(rows)))]


def weld(vertices: Floats, faces: Ints) -> tuple[Floats, Ints]:
    """Merge the vertices of a cell into the lowest; drop degenerate and duplicate faces."""
    vertices, faces, remaining = merge(vertices, faces)
    return vertices, faces[remaining]


def merge(vertices: Floats, faces: Ints) -> tuple[Floats, Ints, Ints]:
    """`weld`, but returning all faces and the indices of those to keep."""
    order, is_first = _order(vertices, cell_keys(vertices))
    position = np.empty(len(vertices), np.int64)
    position[order] = np.cumsum(is_first) - 1
    vertices, faces = vertices[order[is_first]], position[faces]
    corners = np.sort(faces, 1)
    distinct = (corners[:, 1:] != corners[:, :-1]).all(1)
    whole = np.flatnonzero(distinct & has_area(vertices, faces))
    _, first = np.unique(row_numbers(corners[whole], len(vertices)), return_index=True)
    return vertices, faces, whole[np.sort(first)]


def has_area(vertices: Floats, faces: Ints) -> npt.NDArray[np.bool_]:
    """(f,): whether each face has an area, at any scale."""
    at = [axis[faces.T] for axis in vertices.T.astype(np.float64)]
    x, y, z = (axis[1:] - axis[:1] for axis in at)  # edges from the first corner, (k - 1, f)
    cross = np.square(y[:-1] * z[1:] - z[:-1] * y[1:])
    cross += np.square(z[:-1] * x[1:] - x[:-1] * z[1:])
    cross += np.square(x[:-1] * y[1:] - y[:-1] * x[1:])
    lengths = np.square(x) + np.square(y) + np.square(z)
    return cross.max(0, initial=0) > 1e-10 * np.square(lengths.max(0, initial=0))


def vertex_ranks(faces: Ints, reach: int) -> Ints:
    """(f, k) -> (f, k): how many vertices were used since the last use of each corner's vertex, not
    counting those of its own face; -1 where it is new, `reach` or more, and in padding."""
    ranks = np.full(faces.shape, -1, np.int64)
    recent: list[int] = []
    for face, corners in enumerate(faces.tolist()):
        if min(corners) < 0:
            continue
        for slot, vertex in enumerate(corners):
            place = recent.index(vertex) if vertex in recent else -1
            if slot <= place < slot + reach:
                ranks[face, slot] = place - slot
                del recent[place]
            elif place >= 0:
                recent[place] = -1  # `points_of` takes this corner for another vertex
            recent.insert(0, vertex)
    return ranks


def points_of(ranks: Ints) -> Ints:
    """The inverse: (f, k) ranks, -1 for a new vertex -> (f, k) numbers of points.

    A rank beyond all vertices is the last one's; where there is none, the vertex is new.
    """
    points = np.zeros(ranks.shape, np.int64)
    recent: list[int] = []
    count = 0
    for face, corners in enumerate(ranks.tolist()):
        for slot, rank in enumerate(corners):
            place = min(rank + slot, len(recent) - 1)
            if rank < 0 or place < slot:
                point, count = count, count + 1
            else:
                point = recent.pop(place)
            recent.insert(0, point)
            points[face, slot] = point
    return points

"""Geometry of meshes as pure functions: bins, adjacency, canonical order, angles and areas.

Shapes: vertices (v, 3), faces (f, k) of vertex numbers with k = 3 or 4, a face with a corner of -1
is padding; corners (..., k, 3) are the coordinates of each face. The last coordinate is vertical.
What runs on models' tensors takes torch tensors on any device; what orders and links a whole mesh
is numpy, because it runs in the workers that load data.
"""

from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.nn.quantise import full_precision

NEIGHBOURS = 8
BINS = 128
EXTENT = 0.95
_TINY = 1e-20  # squared lengths below it count as zero, so that gradients stay finite

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


@overload
def discretise(x: Tensor, bins: int = ..., low: float = ..., high: float = ...) -> Tensor: ...
@overload
def discretise(x: Floats, bins: int = ..., low: float = ..., high: float = ...) -> Ints: ...
def discretise(
    x: Tensor | Floats, bins: int = BINS, low: float = -1.0, high: float = 1.0
) -> Tensor | Ints:
    """The bin of each coordinate; what lies outside goes to the first or the last bin."""
    steps = (x - low) * (bins / (high - low))
    if isinstance(steps, Tensor):
        return steps.floor().long().clamp(0, bins - 1)
    return np.floor(steps).astype(np.int64).clip(0, bins - 1)


@overload
def undiscretise(ids: Tensor, bins: int = ..., low: float = ..., high: float = ...) -> Tensor: ...
@overload
def undiscretise(ids: Ints, bins: int = ..., low: float = ..., high: float = ...) -> Floats: ...
def undiscretise(
    ids: Tensor | Ints, bins: int = BINS, low: float = -1.0, high: float = 1.0
) -> Tensor | Floats:
    """The centre of each bin, in fp32."""
    real = ids.float() if isinstance(ids, Tensor) else ids.astype(np.float32)
    return (real + 0.5) * ((high - low) / bins) + low


def gather_corners(vertices: Tensor, faces: Tensor) -> Tensor:
    """(b, v, 3) and (b, f, k) -> (b, f, k, 3): the coordinates of every corner; padding is zero."""
    batch, count, corners = faces.shape
    index = faces.clamp(min=0).reshape(batch, count * corners, 1).expand(-1, -1, 3)
    found = vertices.gather(1, index).reshape(batch, count, corners, 3)
    return found * (faces >= 0).all(-1)[..., None, None].to(found.dtype)


def _norm(vectors: Tensor) -> Tensor:
    squares = vectors.square().sum(-1)
    real = squares > _TINY
    return torch.where(real, torch.where(real, squares, 1).sqrt(), 0)


def _unit(vectors: Tensor) -> Tensor:
    norm = _norm(vectors)[..., None]
    return torch.where(norm > 0, vectors / torch.where(norm > 0, norm, 1), 0)


def corner_angles(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (..., k): the angle between the two edges at each corner, in radians.

    Zero at a corner that coincides with one of its neighbours.
    """
    corners = full_precision(corners)
    ahead = _unit(corners.roll(-1, -2) - corners)
    back = _unit(corners.roll(1, -2) - corners)
    sine = _norm(torch.linalg.cross(ahead, back))
    cosine = (ahead * back).sum(-1)
    nowhere = (sine == 0) & (cosine == 0)
    return torch.atan2(sine, torch.where(nowhere, 1, cosine))


def _area_vectors(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (..., 3): along the normal, as long as the area.

    A quad need not be flat; the vector area is the same whichever diagonal divides it.
    """
    corners = full_precision(corners)
    spokes = corners[..., 1:, :] - corners[..., :1, :]
    return torch.linalg.cross(spokes[..., :-1, :], spokes[..., 1:, :]).sum(-2) / 2


def face_areas(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (...)."""
    return _norm(_area_vectors(corners))


def face_normals(corners: Tensor) -> Tensor:
    """(..., k, 3) -> (..., 3): of length one, or zero where the face has no area."""
    return _unit(_area_vectors(corners))


def _numpy(array: Tensor | npt.NDArray[Any]) -> Ints:
    given = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
    return np.asarray(given, np.int64)


def _groups(faces: Ints) -> tuple[Ints, Ints, Ints]:
    """Faces in the order of the vertex pairs they hold; for each, its pair's first and end."""
    corners = faces.shape[1]
    first, second = np.triu_indices(corners, 1)
    lesser = np.minimum(faces[:, first], faces[:, second])
    greater = np.maximum(faces[:, first], faces[:, second])
    whole = np.all(faces >= 0, axis=1)
    used = whole[:, None] & (lesser < greater)
    owner = np.broadcast_to(np.arange(len(faces))[:, None], used.shape)[used]
    keys = lesser[used] * (faces.max(initial=0) + 1) + greater[used]
    order = np.argsort(keys, kind="stable")  # stable: ascending faces within a pair
    keys, owner = keys[order], owner[order]
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    again = ~new
    again[1:] &= owner[1:] == owner[:-1]  # a face with a vertex twice holds a pair twice
    if again.any():
        owner, new = owner[~again], new[~again]
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(new))
    group = np.cumsum(new) - 1
    return owner, starts[group], ends[group]


def _linked(faces: Ints, width: int | None) -> Ints:
    """Sorted numbers `face * count + neighbour`, each once.

    With a width, of each pair of vertices only its first width + 1 faces are looked at: the lowest
    `width` neighbours of a face are among them, and a fan of n faces around one edge costs n.
    """
    count = len(faces)
    owner, starts, ends = _groups(faces)
    deepest = int((ends - starts).max(initial=0))
    depth = deepest if width is None else min(deepest, width + 1)
    found: list[Ints] = []
    for offset in range(depth):
        place = starts + offset
        inside = np.flatnonzero(place < ends)
        face, other = owner[inside], owner[place[inside]]
        apart = face != other
        found.append(face[apart] * count + other[apart])
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _table(linked: Ints, count: int, width: int) -> Ints:
    """(count, width) of the lowest neighbours of each face, ascending, padded with -1."""
    face, other = np.divmod(linked, max(count, 1))
    starts = np.searchsorted(face, np.arange(count))
    rank = np.arange(len(face)) - starts[face]
    kept = rank < width
    table = np.full((count, width), -1, np.int64)
    table[face[kept], rank[kept]] = other[kept]
    return table


def _each(array: Ints, function: Any) -> Ints:
    """The function of a matrix, or of each in a batch of matrices."""
    if array.ndim == 2:
        return function(array)
    return np.stack([function(matrix) for matrix in array])


@overload
def face_neighbours(faces: Tensor, width: int = NEIGHBOURS) -> Tensor: ...
@overload
def face_neighbours(faces: Ints, width: int = NEIGHBOURS) -> Ints: ...
def face_neighbours(faces: Tensor | Ints, width: int = NEIGHBOURS) -> Tensor | Ints:
    """([b,] f, k) -> ([b,] f, width): the faces that share at least two vertices with each.

    Ascending and padded with -1; past `width` neighbours the highest are left out. Built from a
    sorted list of vertex pairs, never by comparing all faces.
    """
    table = _each(_numpy(faces), lambda one: _table(_linked(one, width), len(one), width))
    return torch.from_numpy(table).to(faces.device) if isinstance(faces, Tensor) else table


@overload
def face_edges(faces: Tensor) -> Tensor: ...
@overload
def face_edges(faces: Ints) -> Ints: ...
def face_edges(faces: Tensor | Ints) -> Tensor | Ints:
    """(f, k) -> (e, 2): every ordered pair of faces that share two vertices, without itself."""
    given = _numpy(faces)
    edges = np.stack(np.divmod(_linked(given, None), max(len(given), 1)), 1)
    return torch.from_numpy(edges).to(faces.device) if isinstance(faces, Tensor) else edges


@overload
def neighbours_from_edges(face_edges: Tensor, count: int, width: int = NEIGHBOURS) -> Tensor: ...
@overload
def neighbours_from_edges(face_edges: Ints, count: int, width: int = NEIGHBOURS) -> Ints: ...
def neighbours_from_edges(
    face_edges: Tensor | Ints, count: int, width: int = NEIGHBOURS
) -> Tensor | Ints:
    """([b,] e, 2) -> ([b,] count, width): as `face_neighbours`, from pairs padded with -1."""

    def link(edges: Ints) -> Ints:
        used = (edges >= 0).all(1) & (edges[:, 0] != edges[:, 1])
        edges = edges[used]
        if edges.max(initial=-1) >= count:
            raise ValueError(f"face_edges names face {edges.max()}, but there are {count} faces")
        return _table(np.unique(edges[:, 0] * count + edges[:, 1]), count, width)

    table = _each(_numpy(face_edges), link)
    if isinstance(face_edges, Tensor):
        return torch.from_numpy(table).to(face_edges.device)
    return table


def normalised(vertices: Floats, extent: float = EXTENT) -> Floats:
    """Centred, with the longest side of the bounding box from -extent to extent."""
    low, high = vertices.min(0), vertices.max(0)
    half = float((high - low).max()) / 2
    return (vertices - (low + high) / 2) * (extent / half if half > 0 else 1.0)


def canonical(vertices: Floats, faces: Ints, bins: int = BINS) -> tuple[Floats, Ints]:
    """The same mesh in the one order that does not depend on how its lists were ordered.

    Vertices ascend by (z, y, x) of their bins (the exact coordinates decide within a cell, so that
    rounding noise reorders nothing); those without a face go. Faces are rotated, never mirrored,
    until the lowest vertex comes first, and sorted.
    """
    used = np.zeros(len(vertices), bool)
    used[faces] = True
    kept = np.flatnonzero(used)
    rows = vertices[kept]
    cells = discretise(rows, bins)
    keys = (cells[:, 2] * bins + cells[:, 1]) * bins + cells[:, 0]
    order = np.lexsort((rows[:, 0], rows[:, 1], rows[:, 2], keys))
    place = np.empty(len(vertices), np.int64)
    place[kept[order]] = np.arange(len(kept))
    moved = place[faces]
    corners = faces.shape[1]
    turn = (moved.argmin(1)[:, None] + np.arange(corners)) % corners
    moved = np.take_along_axis(moved, turn, 1)
    return rows[order], moved[np.lexsort(moved.T[::-1])]


def weld(vertices: Floats, faces: Ints, bins: int = BINS) -> tuple[Floats, Ints]:
    """Vertices of one cell become one (the lowest of them); faces that lose a corner go.

    So do faces without area and all but one of the faces with the same corners.
    """
    vertices, faces, kept = merge(vertices, faces, bins)
    return vertices, faces[kept]


def merge(vertices: Floats, faces: Ints, bins: int = BINS) -> tuple[Floats, Ints, Ints]:
    """What `weld` does, with all faces and the numbers of those that stay."""
    cells = discretise(vertices, bins)
    keys = (cells[:, 2] * bins + cells[:, 1]) * bins + cells[:, 0]
    order = np.lexsort((vertices[:, 0], vertices[:, 1], vertices[:, 2], keys))
    new = np.ones(len(keys), bool)
    new[1:] = keys[order][1:] != keys[order][:-1]
    place = np.empty(len(keys), np.int64)
    place[order] = np.cumsum(new) - 1
    vertices, faces = vertices[order[new]], place[faces]
    corners = np.sort(faces, 1)
    whole = (corners[:, 1:] != corners[:, :-1]).all(1) & has_area(vertices, faces)
    whole = np.flatnonzero(whole)
    _, first = np.unique(corners[whole], axis=0, return_index=True)
    return vertices, faces, whole[np.sort(first)]


def has_area(vertices: Floats, faces: Ints) -> npt.NDArray[np.bool_]:
    """(f,): whether the corners of each face span a surface, whatever its size."""
    spokes = vertices[faces[:, 1:]].astype(np.float64) - vertices[faces[:, :1]]
    crossed = np.square(np.cross(spokes[:, :-1], spokes[:, 1:])).sum(-1).max(1, initial=0)
    return crossed > 1e-10 * np.square(np.square(spokes).sum(-1).max(1, initial=0))

"""Remeshing from voxels: a dense closed surface around any triangles.

Exact distances on the grid nodes near the surface, a flood fill from outside, and surface nets
(Gibson, 1998) with the vertices moved onto the original. Coordinates inside are in voxels, with the
axis first: points are (3, n), triangles (corner, axis, n).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.meshes.polygons import Ints, Mesh

Reals = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]
MAX_RESOLUTION = 320
PAD = 3
"""Free voxels around the mesh."""
SHELL = 0.5001
"""Nodes at most this far from the surface stop the flood: of an edge of the grid that crosses the
surface, at least one end does."""
REACH = 1.01
"""Distances are exact up to here: an end of the edge into the shell is within it of the side of a
wall that the flood sees."""
THICKNESS = 0.25
"""Distance of the faces of a thin shell from the sheet."""
BLOCK = 16_384
"""Columns of nodes at a time."""


def voxel_remesh(vertices: npt.ArrayLike, faces: npt.ArrayLike, resolution: int) -> Mesh:
    """Closed dense triangles on the outer surface, with `resolution` voxels on the longest side.

    Solids keep their size; parts that overlap are united, inner walls and gaps and holes narrower
    than a voxel are gone. An open sheet, and walls thinner than a voxel, become a thin shell with
    faces a quarter of a voxel outside both sides. Raises ValueError if no triangle has an area.
    """
    if not 2 <= resolution <= MAX_RESOLUTION:
        raise ValueError(f"resolution is {resolution}; take 2 to {MAX_RESOLUTION} voxels")
    points, triangles = np.asarray(vertices, np.float64), np.asarray(faces, np.int64)
    used = points[triangles.reshape(-1)]
    low = used.min(0, initial=np.inf)
    size = used.max(0, initial=-np.inf) - low
    voxel = float(size.max()) / resolution
    if not (len(used) and voxel > 0 and np.isfinite(voxel)):
        raise ValueError("the mesh has no extent")
    corners = ((used - low) / voxel + PAD).astype(np.float32).reshape(-1, 3, 3).transpose(1, 2, 0)
    grid = _grid(np.ascontiguousarray(corners), tuple((size / voxel).astype(int) + 2 * PAD + 2))
    nodes, quads = _surface(grid)
    return Mesh((nodes.T.astype(np.float64) - PAD) * voxel + low, _triangles(nodes, quads))


def closest(points: Reals, triangles: Reals) -> Reals:
    """(3, n): the closest point to each of (3, n) on its triangle of (3, 3, n)."""
    a, b, c = triangles
    normal = _cross(b - a, c - a)
    length = np.maximum(_dot(normal, normal), np.finfo(normal.dtype).tiny)
    at = points - normal * (_dot(points - a, normal) / length)
    inside = length > np.finfo(normal.dtype).tiny
    for start, end in ((a, b), (b, c), (c, a)):
        inside &= _dot(_cross(end - start, at - start), normal) >= 0
    others = np.flatnonzero(~inside)
    points, (a, b, c) = points[:, others], triangles[..., others]
    best, least = _on_segment(points, a, b)
    for start, end in ((b, c), (c, a)):
        other, squared = _on_segment(points, start, end)
        best = np.where(squared < least, other, best)
        least = np.minimum(squared, least)
    at[:, others] = best
    return at


def _on_segment(points: Reals, start: Reals, end: Reals) -> tuple[Reals, Reals]:
    edge = end - start
    length = np.maximum(_dot(edge, edge), np.finfo(edge.dtype).tiny)
    at = start + edge * np.clip(_dot(points - start, edge) / length, 0, 1)
    apart = points - at
    return at, _dot(apart, apart)


def _dot(a: Reals, b: Reals) -> Reals:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: Reals, b: Reals) -> Reals:
    x, y, z = a
    u, v, w = b
    return np.stack([y * w - z * v, z * u - x * w, x * v - y * u])


# -- distances and the flood ----------------------------------------------------------------


class _Grid(NamedTuple):
    triangles: Reals
    nearest: npt.NDArray[np.int32]
    """Nodes (x, y, z): the closest triangle, or -1 beyond REACH."""
    outside: Mask


def _grid(triangles: Reals, shape: tuple[int, ...]) -> _Grid:
    a, b, c = triangles
    normals = _cross(b - a, c - a)
    lengths = np.sqrt(_dot(normals, normals))
    real = lengths > 1e-6 * np.maximum(1e-6, np.square(b - a).sum(0) + np.square(c - a).sum(0))
    if not real.any():
        raise ValueError("no triangle of the mesh has an area")
    triangles, normals = triangles[..., real], (normals / np.where(real, lengths, 1))[:, real]
    count = int(np.prod(shape))
    best = np.full(count, np.inf, np.float32)
    nearest = np.full(count, -1, np.int32)
    for owner, node in _near(triangles, normals, shape):
        points = np.stack(np.unravel_index(node, shape)).astype(np.float32)
        apart = points - closest(points, triangles[..., owner])
        squared = _dot(apart, apart)
        np.minimum.at(best, node, squared)
        won = squared <= best[node]
        nearest[node[won]] = owner[won]
    free = (best > SHELL**2).reshape(shape)
    return _Grid(triangles, nearest.reshape(shape), _flood(free))


def _near(triangles: Reals, normals: Reals, shape: tuple[int, ...]) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of a triangle and a node within REACH of its plane and of its box: columns of nodes
    along the largest axis of the normal."""
    count = normals.shape[1]
    axes = (np.abs(normals).argmax(0) + np.array([[1], [2], [0]])) % 3  # u, v, and the largest
    turned = np.take_along_axis(triangles, axes[None], 1)
    nu, nv, nw = np.take_along_axis(normals, axes, 0)
    first = np.ceil(turned.min(0) - REACH).astype(np.int64)
    last = np.floor(turned.max(0) + REACH).astype(np.int64)
    wide, deep = (last - first + 1)[:2]
    level = _dot(normals, triangles[0])
    strides = np.array([shape[1] * shape[2], shape[2], 1])[axes]
    ends = np.cumsum(wide * deep)
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK, "right")))
        owner = np.repeat(np.arange(start, stop), (wide * deep)[start:stop])
        rank = np.arange(len(owner)) + before - (ends - wide * deep)[owner]
        u, v = first[0, owner] + rank // deep[owner], first[1, owner] + rank % deep[owner]
        owner, u, v = _over(turned, nw, owner, u, v)
        middle = (level[owner] - nu[owner] * u - nv[owner] * v) / nw[owner]
        half = REACH / np.abs(nw[owner])
        w = np.ceil(middle - half).astype(np.int64) + np.arange(4)[:, None]
        fits = (w <= middle + half) & (w >= first[2, owner]) & (w <= last[2, owner])
        node = u * strides[0, owner] + v * strides[1, owner] + w * strides[2, owner]
        yield np.broadcast_to(owner, w.shape)[fits], node[fits]
        start = stop


def _over(turned: Reals, facing: Reals, owner: Ints, u: Ints, v: Ints) -> tuple[Ints, Ints, Ints]:
    """The columns within REACH of each side of the projected triangle."""
    sign = np.sign(facing)
    over = np.ones(len(owner), bool)
    for start, end in ((0, 1), (1, 2), (2, 0)):
        along = turned[end, :2] - turned[start, :2]
        along *= sign / np.maximum(np.hypot(*along), 1e-9)
        rest = along[1] * turned[start, 0] - along[0] * turned[start, 1]
        over &= along[0, owner] * v - along[1, owner] * u + rest[owner] >= -REACH
    return owner[over], u[over], v[over]


def _flood(free: Mask) -> Mask:
    """The free nodes that are connected with the border, by sweeps along the axes."""
    outside = np.zeros_like(free)
    outside[0] = True
    layouts = [free]
    for _ in range(2):
        layouts.append(np.ascontiguousarray(layouts[-1].transpose(1, 2, 0)))
    reached = 0
    while (count := int(np.count_nonzero(outside))) > reached:
        reached = count
        for layout in layouts:
            for here, before in _steps(len(layout)):
                outside[here] |= outside[before] & layout[here]
            outside = np.ascontiguousarray(outside.transpose(1, 2, 0))
    return outside


def _steps(count: int) -> list[tuple[int, int]]:
    forward = [(at, at - 1) for at in range(1, count)]
    return forward + [(before, at) for at, before in reversed(forward)]


# -- surface nets ---------------------------------------------------------------------------


def _surface(grid: _Grid) -> tuple[Reals, Ints]:
    """Vertices (3, n) and quads (m, 4), with their normals outwards.

    Each edge of the grid from a free node into the shell has a quad; its corners are in the four
    cells around it, at the mean of what the edges of a cell point at.
    """
    outside, shape = grid.outside, grid.outside.shape
    strides = (shape[1] * shape[2], shape[2], 1)
    targets: list[Reals] = []
    quads: list[Ints] = []
    for axis in range(3):
        ahead = np.moveaxis(outside, axis, 0)
        crossing = np.zeros(shape, bool)
        np.moveaxis(crossing, axis, 0)[:-1] = ahead[:-1] != ahead[1:]
        node = np.flatnonzero(crossing)
        is_low = outside.reshape(-1)[node]
        ends = node, node + strides[axis]
        targets.append(_target(grid, np.where(is_low, *ends), np.where(is_low, *ends[::-1])))
        u, v = strides[(axis + 1) % 3], strides[(axis + 2) % 3]
        around = node[:, None] - np.array([0, u, u + v, v])
        quads.append(np.where(is_low[:, None], around[:, ::-1], around))
    cells = np.concatenate(quads)
    is_used = np.zeros(outside.size, bool)
    is_used[cells] = True
    number = np.cumsum(is_used) - 1
    corners = number[cells]
    flat = corners.reshape(-1)
    share = 1 / np.bincount(flat)
    weights = np.repeat(np.concatenate(targets, axis=1), 4, axis=1)
    return np.stack([np.bincount(flat, axis) * share for axis in weights]), corners


def _target(grid: _Grid, node: Ints, inner: Ints) -> Reals:
    """Where the surface goes near free nodes and their neighbours in the shell: onto the closest
    triangle, or off it if there is free space behind."""
    points = np.stack(np.unravel_index(node, grid.outside.shape)).astype(np.float32)
    nearest = grid.nearest.reshape(-1)
    owner = np.where(nearest[node] < 0, nearest[inner], nearest[node])
    at = closest(points, grid.triangles[..., owner])
    away = points - at
    away /= np.sqrt(_dot(away, away))
    behind = np.rint(at - 0.75 * away).astype(np.int64)
    is_thin = grid.outside[tuple(behind)]
    return at + away * (THICKNESS * is_thin)


def _triangles(vertices: Reals, quads: Ints) -> Ints:
    """Each quad in two along its shorter diagonal."""
    a, b, c, d = vertices[:, quads.T].swapaxes(0, 1)
    turn = np.square(a - c).sum(0) > 1.0001 * np.square(b - d).sum(0)  # equal ones: no rounding
    quads = np.where(turn[:, None], np.roll(quads, -1, 1), quads)
    return quads[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3)

"""Points with unit normals: samples of a surface, and clouds from files."""

import warnings
from array import array
from io import BytesIO
from itertools import chain, compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from quintet.media.errors import BadFile, printable
from quintet.media.meshes.files import MAX_BYTES, MAX_COORDINATE, read_mesh, readable, reading
from quintet.media.meshes.ply import Pick, is_cloud, read_ply_points
from quintet.media.meshes.polygons import Floats, Ints, Unusable, lines_of
from quintet.media.shards.member import as_path

MAX_POINTS = 1_000_000
MIN_POINTS = 64
ESTIMATED = 30_000
"""Points of a file whose normals are estimated, if more are not asked for."""
LEAF = 192
"""Points whose neighbours are searched together."""
VIEWS = 64
"""Directions from which a cloud is looked at to tell its outside."""
HIDDEN = 0.25
"""Depth behind the first point at which a view counts for 1/e, in distances of neighbours."""


class Samples(NamedTuple):
    points: Floats  # (n, 3)
    normals: Floats  # (n, 3)
    faces: Ints  # (n,): the face of each


def sample_surface(
    vertices: npt.ArrayLike, faces: npt.ArrayLike, count: int, rng: np.random.Generator
) -> Samples:
    """Area-weighted samples of triangles, in random order, with face normals.

    Raises ValueError if no triangle has an area.
    """
    a, b, c = np.asarray(vertices, np.float64).T[:, np.asarray(faces, np.int64).T].swapaxes(0, 1)
    first, second = b - a, c - a
    normals = np.cross(first, second, axis=0)
    areas = np.sqrt(np.square(normals).sum(0))
    ends = np.cumsum(areas)
    if not len(ends) or not 0 < ends[-1] < np.inf:
        raise ValueError("no face has an area")
    at = (rng.permutation(count) + rng.random(count)) / count  # every part has its share
    chosen = np.searchsorted(ends, at * ends[-1], "right")
    chosen = np.minimum(chosen, np.flatnonzero(areas)[-1])
    u, v = rng.random((2, count))
    u, v = np.where(u + v > 1, (1 - u, 1 - v), (u, v))
    points = [x[chosen] + u * y[chosen] + v * z[chosen] for x, y, z in zip(a, first, second)]
    unit = normals / np.where(areas, areas, 1)
    return Samples(np.stack(points, 1), np.stack([axis[chosen] for axis in unit], 1), chosen)


def point_suffixes() -> tuple[str, ...]:
    return (*readable(), ".xyz", ".npy")


# -- files ----------------------------------------------------------------------------------


def read_points(
    path: Path | str,
    count: int,
    rng: np.random.Generator,
    *,
    max_bytes: int = MAX_BYTES,
    max_points: int = MAX_POINTS,
    upright: bool = True,
) -> Floats:
    """(n, 6): at most `count` points and unit normals of a file in its own units, in random order.

    A mesh is sampled on its surface. A .ply without faces, .xyz (text: x y z and perhaps a normal)
    and .npy (n, 3) or (n, 6) are clouds; three more columns that are not of unit length are taken
    for colours, and missing normals are estimated. Of a cloud of more than `max_points`, so many
    are drawn, with a warning. Raises BadFile.
    """
    path = as_path(path)
    suffix = path.suffix.lower()
    if suffix not in point_suffixes():
        known = ", ".join(point_suffixes())
        raise BadFile(path, "has no supported format of meshes or points", f"use one of {known}")
    with reading(path, max_bytes):
        data = b"" if suffix in readable() and suffix != ".ply" else path.read_bytes()
        if not data or (suffix == ".ply" and not is_cloud(data)):
            return _of_mesh(path, count, rng, max_bytes, upright)

        def pick(total: int) -> npt.NDArray[np.bool_]:
            drawn = np.ones(total, bool)
            if total > max_points:
                name = f"{printable(path.name)} has {total:,} points"
                warnings.warn(f"{name}; {max_points:,} of them are used", stacklevel=4)
                drawn[rng.choice(total, total - max_points, replace=False)] = False
            return drawn

        return _of_cloud(_READERS[suffix](data, pick), count, rng)


def _of_mesh(
    path: Path, count: int, rng: np.random.Generator, max_bytes: int, upright: bool
) -> Floats:
    vertices, faces = read_mesh(path, max_bytes=max_bytes, upright=upright)
    used = vertices[faces.reshape(-1)]
    low, side = used.min(0), float(np.ptp(used, axis=0).max())
    try:
        points, normals, _ = sample_surface((vertices - low) / (side or 1), faces, count, rng)
    except ValueError as error:
        raise Unusable(f"has no surface: {error}", "repair it") from error
    return np.concatenate([points * side + low, normals], axis=1)


def _of_cloud(rows: Floats, count: int, rng: np.random.Generator) -> Floats:
    if len(rows) < MIN_POINTS:
        raise Unusable(f"has {len(rows)} points", f"give at least {MIN_POINTS}")
    points, extra = rows[:, :3], rows[:, 3:6]
    if not np.isfinite(points).all():
        raise Unusable("has points that are not finite numbers (NaN or infinite)", "repair it")
    if (largest := np.abs(points).max()) > MAX_COORDINATE:
        raise Unusable(f"has a coordinate of {largest:.0e}", "scale the points to usual numbers")
    side = float(np.ptp(points, axis=0).max()) or 1.0
    spread = np.linalg.eigvalsh(np.cov(((points - points.mean(0)) / side).T))
    if spread[1] <= 1e-12 * spread[2]:
        raise Unusable("has all points in one place or on one line", "give points of a surface")
    order = rng.permutation(len(rows))
    lengths = np.linalg.norm(extra, axis=1) if extra.shape[1] == 3 else np.zeros(len(rows))
    is_unit = np.abs(lengths - 1) < 0.1
    if is_unit.mean() > 0.99:
        order = order[is_unit[order]][:count]
        return np.concatenate([points[order], extra[order] / lengths[order, None]], axis=1)
    order = order[: max(count, ESTIMATED)]
    normals = estimate_normals(points[order])
    return np.concatenate([points[order], normals], axis=1)[:count]


def _read_xyz(data: bytes, pick: Pick) -> Floats:
    lines = lines_of(data.replace(b",", b" "))
    first = next(lines, [])
    if len(first) == 1:  # the number of points
        first = next(lines, [])
    columns = 6 if len(first) >= 6 else 3
    values = array("d")
    for tokens in compress(chain(filter(None, [first]), lines), pick(data.count(b"\n") + 1)):
        if len(tokens) < columns:
            raise Unusable(f"has a row of {len(tokens)} numbers", "give x y z in each")
        values.extend(map(float, tokens[:columns]))
    return np.array(values).reshape(-1, columns)


def _read_npy(data: bytes, pick: Pick) -> Floats:
    file, formats = BytesIO(data), np.lib.format
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    shape, by_column, kind = readers[formats.read_magic(file)](file)
    if kind.hasobject or kind.kind not in "fiu":
        raise Unusable(f"holds {kind}, not numbers", "save an array of float32")
    if len(shape) != 2 or shape[0] < 0 or shape[1] not in (3, 6):
        raise Unusable(f"has shape {shape}", "save an array of shape (n, 3) or (n, 6)")
    need, held = shape[0] * shape[1] * kind.itemsize, len(data) - file.tell()
    if need > held:
        raise Unusable(f"announces {need:,} bytes of numbers, but holds {held:,}")
    values = np.frombuffer(data, kind, shape[0] * shape[1], file.tell())
    rows = values.reshape(shape, order="F" if by_column else "C")
    return rows[pick(len(rows))].astype(np.float64)


_READERS = {".ply": read_ply_points, ".xyz": _read_xyz, ".npy": _read_npy}


# -- normals --------------------------------------------------------------------------------


def estimate_normals(points: npt.ArrayLike, neighbours: int = 16) -> Floats:
    """(n, 3): unit normals of the planes through each point's neighbours, facing outwards.

    Which side is outside: the point is looked at from all around, and the views that see it in
    front of the others tell.
    """
    places = np.asarray(points, np.float64)
    places = places - (places.min(0) + places.max(0)) / 2
    places /= np.abs(places).max() or 1.0
    near, spacing = _neighbours(places, min(neighbours, len(places)))
    around = places[near] - places[near].mean(1, keepdims=True)
    normals = np.linalg.eigh(np.einsum("nki,nkj->nij", around, around))[1][:, :, 0]
    return normals * np.where(_votes(places, normals, spacing) < 0, -1.0, 1.0)[:, None]


def _neighbours(points: Floats, count: int) -> tuple[Ints, float]:
    """(n, count): each point's nearest, itself included; and the median distance of the last."""
    along = int(np.ptp(points, axis=0).argmax())
    order = np.argsort(points[:, along])
    points = points[order]
    columns = [np.ascontiguousarray(points[:, axis]) for axis in range(3)]
    near, reach = np.empty((len(points), count), np.int64), np.empty(len(points))
    leaves = [np.arange(len(points))]
    while leaves:
        leaf = leaves.pop()
        inside = points[leaf]
        if len(leaf) > max(LEAF, 2 * count):
            half, axis = len(leaf) // 2, np.ptp(inside, axis=0).argmax()
            ranked = np.argpartition(inside[:, axis], half)
            leaves += [leaf[ranked[:half]], leaf[ranked[half:]]]
            continue
        # No neighbour is farther than those in the leaf.
        margin = np.sqrt(_nearest(inside, inside, count)[0].max())
        low, high = inside.min(0) - margin, inside.max(0) + margin
        first = np.searchsorted(columns[along], low[along])
        others = np.arange(first, np.searchsorted(columns[along], high[along], "right"))
        for axis in {0, 1, 2} - {along}:
            at = columns[axis][others]
            others = others[(at >= low[axis]) & (at <= high[axis])]
        squared, chosen = _nearest(inside, points[others], count)
        near[leaf], reach[leaf] = others[chosen], np.sqrt(squared[:, -1])
    back = np.argsort(order)
    return order[near[back]], max(float(np.median(reach)), 1 / 512)


def _nearest(points: Floats, others: Floats, count: int) -> tuple[Floats, Ints]:
    a, b = torch.from_numpy(points), torch.from_numpy(others)
    squared, chosen = torch.cdist(a, b).square().topk(count, largest=False)
    return squared.numpy(), chosen.numpy()


def _votes(points: Floats, normals: Floats, spacing: float) -> Floats:
    """Positive where the normal faces the views that see the point."""
    at = np.arange(VIEWS) + 0.5
    height, angle = 1 - 2 * at / VIEWS, np.pi * (1 + 5**0.5) * at
    radius = np.sqrt(1 - height**2)
    votes = np.zeros(len(points))
    for view in np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1):
        side = np.cross(view, np.eye(3)[np.abs(view).argmin()])
        side /= np.linalg.norm(side)
        plane = points @ np.stack([side, np.cross(view, side)], axis=1)
        cells = np.floor((plane + 2) / spacing).astype(np.int64)
        cell = cells[:, 0] * (cells[:, 1].max() + 1) + cells[:, 1]
        depth = points @ view
        front = np.full(cell.max() + 1, -np.inf)
        np.maximum.at(front, cell, depth)
        votes += (normals @ view) * np.exp((depth - front[cell]) / (HIDDEN * spacing))
    return votes

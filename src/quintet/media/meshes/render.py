"""Rendering of meshes in NumPy: a z-buffer, flat shading and outlined faces.

All triangles are rasterised together. For each row of pixels that a triangle covers, its span
follows from its three edges; the nearest triangle of each pixel wins. Images are drawn at twice
their size and averaged.
"""

from collections.abc import Iterator
from math import radians
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.pixels import Pixels

Floats = npt.NDArray[np.float64]
Picture = npt.NDArray[np.float32]
Places = npt.NDArray[np.floating]  # whole numbers and a half, as the stubs have them
Ints = npt.NDArray[np.int64]
Colour = tuple[int, int, int]

BLUE: Colour = (136, 184, 232)
PAPER: Colour = (244, 245, 247)
INK = 0.30
"""Brightness of an edge relative to its face."""
SAMPLES = 2
DISTANCE = 4.5
"""Distance of the camera from the centre, in radii of the mesh."""
MAX_SPANS = 2_000_000
"""Pixels, including hidden ones, processed at a time: about 100 MB."""
LIGHTS = (((-0.70, 0.75, 0.55), 0.60), ((0.80, 0.05, 0.45), 0.16))
"""Directions (right, up, towards the camera) and strengths."""
AMBIENT = 0.44


class _Screen(NamedTuple):
    """Corners of triangles in the image, in pixels; `near` is the inverse distance."""

    x: Floats  # (t, 3)
    y: Floats  # (t, 3)
    near: Floats  # (t, 3)


class _Edges(NamedTuple):
    """a x + b y + c is the distance in pixels from an edge, positive inside; each (t, 3)."""

    a: Floats
    b: Floats
    c: Floats


def render(
    vertices: npt.ArrayLike,
    faces: npt.ArrayLike,
    size: int = 256,
    azimuth: float = 35,
    elevation: float = 25,
    *,
    edges: bool = True,
    shadow: bool = True,
) -> Pixels:
    """The mesh from the front right and above, as uint8 (size, size, 3).

    Faces are (f, 3) or (f, 4); padding (-1) and invalid faces are skipped, and a mesh without valid
    faces gives a cross. The mesh fills the image. Both sides of a face are lit. The last coordinate
    is up.
    """
    points, polygons = _drawable(vertices, faces)
    picture = np.empty((size * SAMPLES, size * SAMPLES, 3), np.float32)
    picture[:] = PAPER
    if len(polygons) == 0:
        return _averaged(_crossed(picture))
    rotation = _view(azimuth, elevation)
    model = _fitted(points[polygons])
    if shadow and elevation > 0:
        _lay_shadow(picture, _flat(model) @ rotation.T)
    corners, borders = _triangles(model @ rotation.T)
    if not edges:
        borders[:] = False
    _paint(picture, corners, borders)
    return _averaged(picture)


def _drawable(vertices: npt.ArrayLike, faces: npt.ArrayLike) -> tuple[Floats, Ints]:
    points = np.asarray(vertices, np.float64).reshape(-1, 3)
    polygons = np.asarray(faces, np.int64)
    if polygons.size == 0:
        return points, np.zeros((0, 3), np.int64)
    polygons = polygons.reshape(-1, polygons.shape[-1])
    polygons = polygons[((polygons >= 0) & (polygons < len(points))).all(axis=1)]
    # Coordinates must be finite, and still be so when squared.
    return points, polygons[(np.abs(points[polygons]) < 1e30).all(axis=(1, 2))]


def _fitted(model: Floats) -> Floats:
    """The model moved and scaled to a bounding sphere of centre 0 and radius 1."""
    points = model.reshape(-1, 3)
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    radius = float(np.sqrt(((points - centre) ** 2).sum(axis=1)).max())
    return (model - centre) / max(radius, 1e-30)


def _view(azimuth: float, elevation: float) -> Floats:
    """Rows: right, up and towards the camera."""
    around, above = radians(azimuth), radians(elevation)
    eye = np.array([np.sin(around) * np.cos(above), -np.cos(around) * np.cos(above), np.sin(above)])
    right = np.array([np.cos(around), np.sin(around), 0.0])
    return np.stack([right, np.cross(eye, right), eye])  # type: ignore[return-value]


def _flat(model: Floats) -> Floats:
    """The shadow of a light straight above, on a ground at the lowest point."""
    ground = model.copy()
    ground[..., 2] = model[..., 2].min()
    return ground


def _triangles(polygons: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Triangle fans (t, 3, 3), and which of their sides are sides of the polygon.

    Side 0 runs from corner 0 to corner 1, and so on.
    """
    last = polygons.shape[1] - 2
    corners = [polygons[:, [0, at, at + 1]] for at in range(1, last + 1)]
    sides = [np.array([at == 1, True, at == last]) for at in range(1, last + 1)]
    borders = np.repeat(np.stack(sides), len(polygons), axis=0)
    return np.concatenate(corners), borders


def _project(model: Floats, side: int) -> _Screen:
    """Perspective projection; the inverse distance is linear in the image."""
    near = 1 / np.maximum(DISTANCE - model[..., 2], 0.1)
    scale = 0.5 * side * np.sqrt(DISTANCE**2 - 1) * 0.96  # the sphere just fits
    x = side / 2 + model[..., 0] * near * scale
    y = side / 2 - model[..., 1] * near * scale
    return _Screen(x, y, near)


def _with_area(screen: _Screen) -> tuple[_Screen, _Edges, npt.NDArray[np.bool_]]:
    """The triangles with an area in the image, their edges, and their mask."""
    nx, ny = np.roll(screen.x, -1, axis=1), np.roll(screen.y, -1, axis=1)
    a, b = screen.y - ny, nx - screen.x
    c = -(a * screen.x + b * screen.y)
    area = a[:, 0] * screen.x[:, 2] + b[:, 0] * screen.y[:, 2] + c[:, 0]
    length = np.maximum(np.hypot(a, b), 1e-12) * np.where(area < 0, -1.0, 1.0)[:, None]
    mask = np.abs(area) > 1e-9
    edges = _Edges((a / length)[mask], (b / length)[mask], (c / length)[mask])
    return _Screen(screen.x[mask], screen.y[mask], screen.near[mask]), edges, mask


def _ranges(counts: Ints) -> tuple[Ints, Ints]:
    """Owners and positions of counts: 0 0 2 2 2 and 0 1 0 1 2 for 2, 0, 3."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _spans(screen: _Screen, edges: _Edges, side: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Triangle, row, first pixel and end of every row that a triangle covers."""
    top = np.clip(np.ceil(screen.y.min(axis=1) - 0.5), 0, side).astype(np.int64)
    end = np.clip(np.ceil(screen.y.max(axis=1) - 0.5), 0, side).astype(np.int64)
    owner, row = _ranges(np.maximum(end - top, 0))
    row = row + top[owner]
    a = edges.a[owner]
    rest = edges.b[owner] * (row + 0.5)[:, None] + edges.c[owner]
    level = np.abs(a) < 1e-9
    cut = -rest / np.where(level, 1.0, a)
    low = np.where(~level & (a > 0), cut, -np.inf).max(axis=1)
    high = np.where(~level & (a < 0), cut, np.inf).min(axis=1)
    high = np.where((level & (rest < 0)).any(axis=1), -np.inf, high)
    start = np.clip(np.ceil(low - 0.5), 0, side).astype(np.int64)
    stop = np.clip(np.floor(high - 0.5) + 1, 0, side).astype(np.int64)
    mask = stop > start
    return owner[mask], row[mask], start[mask], stop[mask]


def _covered(screen: _Screen, edges: _Edges, side: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Triangle, row and column of all covered pixels, some millions at a time."""
    owner, row, start, stop = _spans(screen, edges, side)
    total = np.cumsum(stop - start)
    begin = 0
    while begin < len(owner):
        done = int(total[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(total, done + MAX_SPANS, "right")))
        span, step = _ranges(stop[begin:end] - start[begin:end])
        span += begin
        yield owner[span], row[span], start[span] + step
        begin = end


def _planes(screen: _Screen, edges: _Edges) -> Floats:
    """Coefficients (t, 3) of the inverse distance as a linear function of x, y and 1."""
    weights = []
    for corner, edge in ((0, 1), (1, 2), (2, 0)):  # each corner is opposite an edge
        a, b, c = edges.a[:, edge], edges.b[:, edge], edges.c[:, edge]
        height = a * screen.x[:, corner] + b * screen.y[:, corner] + c
        share = screen.near[:, corner] / np.maximum(height, 1e-9)
        weights.append(np.stack([a, b, c], axis=1) * share[:, None])
    return weights[0] + weights[1] + weights[2]


def _paint(picture: Picture, corners: Floats, borders: npt.NDArray[np.bool_]) -> None:
    side = len(picture)
    screen, edges, mask = _with_area(_project(corners, side))
    plane, shade = _planes(screen, edges).T, _shade(corners[mask])
    fade, borders = _fade(screen, edges), borders[mask]
    nearest, front = np.zeros(side * side), np.full(side * side, -1)
    for owner, row, column in _covered(screen, edges, side):
        near = _linear(plane, owner, column + 0.5, row + 0.5)
        pixel = row * side + column
        np.maximum.at(nearest, pixel, near)
        won = near >= nearest[pixel]
        front[pixel[won]] = owner[won]
    seen = np.flatnonzero(front >= 0)
    owner, y, x = front[seen], seen // side + 0.5, seen % side + 0.5
    away = np.full(len(seen), np.inf)
    for at in range(3):  # a loop, because NumPy is slow along an axis of three
        edge = np.stack([edges.a[:, at], edges.b[:, at], edges.c[:, at]])
        edge[2, ~borders[:, at]] = np.inf
        np.minimum(away, _linear(edge, owner, x, y), out=away)
    ink = np.clip(1.6 - away, 0, 1) * fade[owner] * (1 - INK)
    tone = (shade[owner] * (1 - ink)).astype(np.float32)
    picture.reshape(-1, 3)[seen] = np.minimum(tone[:, None] * np.array(BLUE, np.float32), 255)


def _linear(plane: Floats, owner: Ints, x: Places, y: Places) -> Floats:
    """a x + b y + c with the coefficients (3, t) of each pixel's triangle."""
    out = plane[0][owner] * x
    out += plane[1][owner] * y
    out += plane[2][owner]
    return out


def _shade(corners: Floats) -> Floats:
    """Brightness of each triangle: the side facing the camera is lit by two lights."""
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    eye = np.array([0, 0, DISTANCE]) - corners.mean(axis=1)
    normal *= np.where((normal * eye).sum(axis=1) < 0, -1.0, 1.0)[:, None]
    tone = np.full(len(corners), AMBIENT)
    for direction, strength in LIGHTS:
        light = np.array(direction) / np.linalg.norm(direction)
        tone += strength * np.maximum(normal @ light, 0)
    return tone


def _fade(screen: _Screen, edges: _Edges) -> Floats:
    """Darkness of the edges of a triangle, by the smallest of its three heights: edges of small
    triangles fade, or they would cover everything."""
    heights = [
        edges.a[:, at] * screen.x[:, (at + 2) % 3]
        + edges.b[:, at] * screen.y[:, (at + 2) % 3]
        + edges.c[:, at]
        for at in range(3)
    ]
    return np.clip(np.min(heights, axis=0) / 16, 0.12, 1.0)


def _lay_shadow(picture: Picture, flat: Floats) -> None:
    """Darken the ground. A soft shadow needs no supersampling."""
    side = len(picture) // SAMPLES
    screen, edges, _ = _with_area(_project(_triangles(flat)[0], side))
    mask = np.zeros((side, side), np.float32)
    for _, row, column in _covered(screen, edges, side):
        mask[row, column] = 1
    soft = _blurred(_blurred(mask, side // 48), side // 24)
    light = 1 - 0.26 * np.repeat(np.repeat(soft, SAMPLES, axis=0), SAMPLES, axis=1)
    picture *= light[:, :, None]


def _blurred(mask: Picture, reach: int) -> Picture:
    """The mean of a square of 2 reach + 1 pixels a side."""
    width = 2 * reach + 1
    for _ in range(2):
        total = np.cumsum(np.pad(mask, ((reach + 1, reach), (0, 0))), axis=0)
        mask = ((total[width:] - total[:-width]) / np.float32(width)).T  # type: ignore[assignment]
    return mask


def _crossed(picture: Picture) -> Picture:
    """A grey cross, for a mesh without valid faces."""
    side = len(picture)
    at = np.arange(side)
    first, second = np.abs(at[:, None] - at), np.abs(at[:, None] + at - side + 1)
    middle = np.abs(at - side / 2) < side / 5
    cross = (np.minimum(first, second) <= max(1, side // 200)) & middle & middle[:, None]
    picture[cross] = (176, 180, 188)
    return picture


def _averaged(picture: Picture) -> Pixels:
    side = len(picture) // SAMPLES
    tall = picture.reshape(side, SAMPLES, -1).sum(axis=1).reshape(side, side, SAMPLES, 3)
    total = np.sum(tall, axis=2)
    return (total / SAMPLES**2 + 0.5).astype(np.uint8)

"""Anti-aliased shapes and textures in numpy, at thousands of images a second.

An image is float32 of shape (3, h, w) in 0..1. Coordinates are in units of the shorter side with
the central square at 0..1, so that a description gives the same image at every size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]  # float32 throughout; the stubs cannot follow it
Colour = tuple[float, float, float]

LATTICES = (3, 7, 15)
"""Cells per side of the three octaves of cloud noise; a cloud takes `CLOUD_BYTES` random bytes."""
CLOUD_BYTES = sum((cells + 1) ** 2 for cells in LATTICES)
LINE = 0.035
"""Half the thickness of a line, relative to half its length."""
REACH = 1.45
"""Extent of a shadow, in radii of its shape."""


class Grid(NamedTuple):
    x: Array  # (w,)
    y: Array  # (h,)
    pixel: float


@lru_cache(maxsize=16)
def grid_for(height: int, width: int) -> Grid:
    """Coordinates of the pixel centres."""
    side = min(height, width)
    x = (np.arange(width, dtype=np.float32) + 0.5 - (width - side) / 2) / side
    y = (np.arange(height, dtype=np.float32) + 0.5 - (height - side) / 2) / side
    return Grid(x.astype(np.float32), y.astype(np.float32), 1 / side)


# Outlines: signed distance to the edge of a shape of radius 1, negative inside.


def _polygon(corners: int) -> Callable[[Array, Array], Array]:
    turns = [2 * pi * (i + 0.5) / corners for i in range(corners)]
    normals = [(sin(turn), -cos(turn)) for turn in turns]
    apothem = cos(pi / corners)

    def distance(u: Array, v: Array) -> Array:
        out = u * normals[0][0] + v * normals[0][1]
        for a, b in normals[1:]:
            np.maximum(out, u * a + v * b, out=out)
        out -= apothem
        return out

    return distance


def _box(half_width: float, half_height: float) -> Callable[[Array, Array], Array]:
    return lambda u, v: np.maximum(np.abs(u) - half_width, np.abs(v) - half_height)


def _disc(u: Array, v: Array) -> Array:
    return np.sqrt(u * u + v * v) - 1


def _ellipse(u: Array, v: Array) -> Array:
    # Scaled by the shorter axis: exact at the flat sides, soft by a pixel or so at the tips.
    v = v / 0.6
    return (np.sqrt(u * u + v * v) - 1) * 0.6


def _cross(u: Array, v: Array) -> Array:
    u, v = np.abs(u), np.abs(v)
    return np.maximum(np.maximum(u, v) - 0.95, np.minimum(u, v) - 0.32)


def _crescent(u: Array, v: Array) -> Array:
    bite = u - 0.5
    return np.maximum(_disc(u, v), 0.85 - np.sqrt(bite * bite + v * v))


def _star(u: Array, v: Array) -> Array:
    # Five half-planes make a pentagram: a point inside lies beyond at most one of them.
    edge = cos(2 * pi / 5)
    first = second = None
    for i in range(5):
        turn = 2 * pi * i / 5 + pi / 2
        far = u * cos(turn) + v * sin(turn) - edge
        if first is None or second is None:
            first, second = far, np.full_like(far, -9)
            continue
        np.maximum(second, np.minimum(first, far), out=second)
        np.maximum(first, far, out=first)
    assert second is not None
    return second


OUTLINES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": _disc,
    "ellipse": _ellipse,
    "ring": lambda u, v: np.abs(np.sqrt(u * u + v * v) - 0.78) - 0.22,
    "triangle": _polygon(3),
    "square": _box(0.71, 0.71),
    "rectangle": _box(0.92, 0.4),
    "pentagon": _polygon(5),
    "hexagon": _polygon(6),
    "star": _star,
    "cross": _cross,
    "crescent": _crescent,
    "half-disc": lambda u, v: np.maximum(_disc(u, v), -v),
    "line": _box(1.0, LINE),
}


# Textures: how much of the second colour, 0..1. An edge is one pixel wide at any size, and a
# pattern too fine for the pixels fades instead of aliasing.


def _wave(phase: Array, period: float, pixel: float) -> Array:
    sharpness = max(period / (2 * pi * pixel), 0.05)
    out = np.sin(phase * np.float32(2 * pi / period))
    out *= min(sharpness, 6.0)
    out += 0.5
    return np.clip(out, 0, 1, out=out)


def _checks(u: Array, v: Array, period: float, pixel: float) -> Array:
    a, b = _wave(u, period, pixel), _wave(v, period, pixel)
    return a + b - 2 * a * b


def _waves(u: Array, v: Array, period: float, pixel: float) -> Array:
    bend = np.sin(v * np.float32(2.6 / period)) * np.float32(0.3 * period)
    return _wave(u + bend, period, pixel)


def _dots(u: Array, v: Array, period: float, pixel: float) -> Array:
    turn = np.float32(2 * pi / period)
    out = np.sin(u * turn) * np.sin(v * turn)
    out -= 0.25
    out *= min(max(period / (2 * pi * pixel), 0.05), 6.0)
    out += 0.5
    return np.clip(out, 0, 1, out=out)


TEXTURES: dict[str, Callable[[Array, Array, float, float], Array]] = {
    "stripes": lambda u, v, period, pixel: _wave(u, period, pixel),
    "checks": _checks,
    "ripples": lambda u, v, period, pixel: _wave(np.sqrt(u * u + v * v), period, pixel),
    "waves": _waves,
    "dots": _dots,
    "gradient": lambda u, v, *_: np.clip(u + 0.5, 0, 1),
    "glow": lambda u, v, *_: np.minimum(np.sqrt(u * u + v * v) * 1.4, 1),
}


@lru_cache(maxsize=64)
def _interpolation(cells: int, height: int, width: int) -> tuple[Array, Array]:
    """Matrices of smooth interpolation from a lattice to the rows and columns of an image."""
    grid = grid_for(height, width)
    sides = []
    for line in (grid.y, grid.x):
        position = (np.clip(line, 0, 1) * cells).astype(np.float32)
        nodes = np.arange(cells + 1, dtype=np.float32)
        distance = np.clip(np.abs(position[:, None] - nodes), 0, 1)
        sides.append((1 - distance * distance * (3 - 2 * distance)).astype(np.float32))
    return sides[0], np.ascontiguousarray(sides[1].T)


def clouds(noise: bytes, height: int, width: int) -> Array:
    """Smooth noise in 0..1 of shape (h, w), of three octaves, from `CLOUD_BYTES` random bytes."""
    values = np.frombuffer(noise, np.uint8).astype(np.float32) / 255
    out, start = np.zeros((height, width), np.float32), 0
    for cells, weight in zip(LATTICES, (0.95, 0.5, 0.25), strict=True):
        count = (cells + 1) ** 2
        lattice = values[start : start + count].reshape(cells + 1, cells + 1) - 0.5
        rows, columns = _interpolation(cells, height, width)
        out += (rows @ (lattice * np.float32(weight))) @ columns
        start += count
    out += 0.5
    return np.clip(out, 0, 1, out=out)


@dataclass(frozen=True)
class Fill:
    """The fill of a surface: two colours, mixed by a texture.

    The texture is "plain", a name in `TEXTURES`, or "clouds" (for backgrounds, with its noise).
    """

    colour: Colour
    second: Colour
    texture: str = "plain"
    period: float = 0.1
    angle: float = 0.0
    noise: bytes = b""


@dataclass(frozen=True)
class Shape:
    """A shape: an outline named in `OUTLINES`, its position, and its fill."""

    outline: str
    x: float
    y: float
    radius: float
    angle: float
    fill: Fill
    shade: float = 0.0
    shadow: float = 0.0


def vector(colour: Colour | Sequence[float]) -> Array:
    return np.array(colour, np.float32).reshape(3, 1, 1)


def rotated(x: Array, y: Array, angle: float) -> tuple[Array, Array]:
    """Coordinates rotated by an angle: two of shape (h, w) from (w,) and (h,)."""
    c, s = np.float32(cos(angle)), np.float32(sin(angle))
    return (c * x)[None] + (s * y)[:, None], (c * y)[:, None] - (s * x)[None]


def _surface(fill: Fill, x: Array, y: Array, pixel: float) -> Array:
    """Colours of shape (3, h, w), or (3, 1, 1) for a plain fill."""
    first = vector(fill.colour)
    if fill.texture == "plain":
        return first
    if fill.texture == "clouds":
        amount = clouds(fill.noise, len(y), len(x))
    else:
        u, v = rotated(x, y, fill.angle)
        amount = TEXTURES[fill.texture](u, v, fill.period, pixel)
    surface = amount * (vector(fill.second) - first)
    surface += first
    return surface


def background(fill: Fill, height: int, width: int) -> Array:
    """An image with one fill."""
    x, y, pixel = grid_for(height, width)
    surface = _surface(fill, x - np.float32(0.5), y - np.float32(0.5), pixel)
    return np.broadcast_to(surface, (3, height, width)).copy()


def _span(line: Array, centre: float, reach: float) -> slice:
    low, high = np.searchsorted(line, (centre - reach, centre + reach))
    return slice(int(low), int(high))


def _darken(part: Array, u: Array, v: Array, distance: Array, strength: float) -> None:
    """A soft shadow. The distance, tilted by the light, approximates a shifted outline."""
    fade = (REACH - np.sqrt(u * u + v * v)) * 3
    soft = np.clip(np.minimum(0.5 - distance * 2.6, fade), 0, 1)
    soft *= -strength
    soft += 1
    part *= soft


def _window(shape: Shape, grid: Grid) -> tuple[slice, slice]:
    """Bounding box of the shape, as rows and columns."""
    reach_x = reach_y = shape.radius * (REACH if shape.shadow else 1.0)
    if shape.outline == "line":
        reach_x *= abs(cos(shape.angle)) + LINE
        reach_y *= abs(sin(shape.angle)) + LINE
    rows = _span(grid.y, shape.y, reach_y + grid.pixel)
    return rows, _span(grid.x, shape.x, reach_x + grid.pixel)


def paint(picture: Array, shape: Shape, light: float) -> None:
    """Draw a shape into the image, in place; `light` is the angle of the light."""
    grid = grid_for(*picture.shape[1:])
    rows, columns = _window(shape, grid)
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    part = picture[:, rows, columns]
    dx = (grid.x[columns] - np.float32(shape.x)) / np.float32(shape.radius)
    dy = (grid.y[rows] - np.float32(shape.y)) / np.float32(shape.radius)
    pixel = grid.pixel / shape.radius
    u, v = rotated(dx, dy, shape.angle)
    lit, _ = rotated(dx, dy, light)
    distance = OUTLINES[shape.outline](u, v)
    if shape.shadow:
        _darken(part, u, v, distance + np.float32(0.17) * lit, shape.shadow)
    distance *= -1 / pixel
    distance += 0.5
    lit *= shape.shade
    lit += 1
    surface = _surface(shape.fill, dx, dy, pixel) * lit
    surface -= part
    surface *= np.clip(distance, 0, 1, out=distance)
    part += surface


def illuminate(picture: Array, light: float, strength: float) -> None:
    """Add a brightness gradient along the direction of the light, in place."""
    x, y, _ = grid_for(*picture.shape[1:])
    along, _ = rotated(x - np.float32(0.5), y - np.float32(0.5), light)
    picture *= 1 + np.float32(strength) * along


def to_bytes(picture: Array) -> npt.NDArray[np.uint8]:
    """uint8 of the same shape."""
    scaled = picture * np.float32(255)
    scaled += 0.5
    return np.clip(scaled, 0, 255, out=scaled).astype(np.uint8)

"""Closed solids that built-in meshes are composed of."""

from dataclasses import dataclass
from functools import lru_cache
from math import pi

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Faces = npt.NDArray[np.int64]
Ring = tuple[float, float, float, float, float]
"""Centre x and y, height, and the two half axes; half axes of zero make a point."""


@dataclass(frozen=True)
class Loft:
    """Stacked polygons joined by walls: a box, a leg, a cone, a lamp shade."""

    sides: int
    rings: tuple[Ring, ...]
    phase: float = 0.0


@dataclass(frozen=True)
class Torus:
    """Horizontal torus."""

    around: int
    across: int
    radius: float
    width: float
    height: float


@dataclass(frozen=True)
class Stairs:
    """Equal steps rising along x."""

    steps: int
    tread: float
    rise: float
    half_width: float


Part = Loft | Torus | Stairs


def part_mesh(part: Part) -> tuple[Points, Faces]:
    """Vertices and outward-oriented faces of one part, in its own units."""
    if isinstance(part, Loft):
        return _loft(part)
    return _torus(part) if isinstance(part, Torus) else _extruded_stairs(part)


@lru_cache(256)
def _circle(sides: int, phase: float) -> Points:
    angles = phase + 2 * pi * np.arange(sides) / sides
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def _loft(part: Loft) -> tuple[Points, Faces]:
    circle = _circle(part.sides, part.phase)
    pointed = tuple(ring[3] == 0 for ring in part.rings)
    levels: list[Points] = []
    for x, y, z, across, along in part.rings:
        level = np.empty((1 if across == 0 else part.sides, 3))
        level[:, :2] = (x, y) if across == 0 else circle * (across, along) + (x, y)
        level[:, 2] = z
        levels.append(level)
    return np.concatenate(levels), _loft_faces(part.sides, pointed)


@lru_cache(256)
def _loft_faces(sides: int, pointed: tuple[bool, ...]) -> Faces:
    """Walls between levels, and a cap on the first and the last unless they are points."""
    sizes = [1 if point else sides for point in pointed]
    starts = np.cumsum([0, *sizes])
    last = int(starts[-2])
    faces: list[tuple[int, ...]] = []
    if not pointed[0]:
        faces += [(0, k + 1, k) for k in range(1, sides - 1)]
    if not pointed[-1]:
        faces += [(last, last + k, last + k + 1) for k in range(1, sides - 1)]
    for level in range(len(sizes) - 1):
        low, high = int(starts[level]), int(starts[level + 1])
        for k in range(sides):
            after = (k + 1) % sides
            if not pointed[level]:
                faces.append((low + k, low + after, high if pointed[level + 1] else high + after))
            if not pointed[level + 1]:
                faces.append((low if pointed[level] else low + k, high + after, high + k))
    return np.array(faces, np.int64)


def _torus(part: Torus) -> tuple[Points, Faces]:
    around, across = _circle(part.around, 0.0), _circle(part.across, pi / 2)
    reach = part.radius + part.width * across[:, 0]
    points = np.empty((part.around, part.across, 3))
    points[..., :2] = around[:, None] * reach[None, :, None]
    points[..., 2] = part.height * across[:, 1]
    grid = np.arange(part.around * part.across).reshape(part.around, part.across)
    right, up = np.roll(grid, -1, 0), np.roll(grid, -1, 1)
    both = np.roll(right, -1, 1)
    faces = np.stack([grid, right, both, grid, both, up], -1).reshape(-1, 3)
    return points.reshape(-1, 3), faces


def _extruded_stairs(part: Stairs) -> tuple[Points, Faces]:
    """The outline starts at the lower back corner, which sees all others: a fan triangulates it."""
    outline = [(part.steps * part.tread, 0.0), (0.0, 0.0)]
    for step in range(part.steps):
        z = (step + 1) * part.rise
        outline += [(step * part.tread, z), ((step + 1) * part.tread, z)]
    count = len(outline)
    points = np.empty((2, count, 3))
    points[..., 0::2] = outline
    points[0, :, 1], points[1, :, 1] = -part.half_width, part.half_width
    fan = np.stack([np.zeros(count - 2, int), np.arange(1, count - 1), np.arange(2, count)], 1)
    here = np.arange(count)
    after = (here + 1) % count
    walls = np.concatenate(
        [
            np.stack([here, here + count, after + count], 1),
            np.stack([here, after + count, after], 1),
        ]
    )
    return points.reshape(-1, 3), np.concatenate([fan[:, ::-1], fan + count, walls[:, ::-1]])

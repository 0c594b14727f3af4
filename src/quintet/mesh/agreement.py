"""Rule-based classifier of built-in shapes, used to evaluate generated meshes.

It tolerates coordinates that are off by a bin or two. Parts are connected components (vertices of
adjacent cells count as one, which bridges small cracks); kind and number of legs follow from the
parts that touch the floor and from proportions.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quintet.mesh.geometry import BINS, Floats, Ints, discretise, has_area, normalised
from quintet.mesh.shapes import KINDS, NUMBERS

Points = npt.NDArray[np.float64]
_BIN = 2 / BINS
_HEIGHT_TOLERANCE = 3.5 * _BIN  # heights within this distance are equal
_MIN_FACES = 4  # smaller parts are ignored


@dataclass(frozen=True)
class Reading:
    """Classification of a mesh."""

    kind: str | None
    """One of the built-in kinds, or None."""
    count: int | None
    """Number of legs, boards or steps, as in a caption."""


UNKNOWN = Reading(None, None)


def parts(vertices: Floats, faces: Ints) -> list[Points]:
    """The vertices of each connected part that has at least four faces."""
    cells = discretise(np.asarray(vertices))
    label = _labels(_near_pairs(cells), faces, len(cells))
    weight = np.bincount(label[faces[:, 0]], minlength=label.max(initial=-1) + 1)
    used = np.zeros(len(vertices), bool)
    used[faces] = True
    points = np.asarray(vertices, np.float64)
    return [points[(label == one) & used] for one in np.flatnonzero(weight >= _MIN_FACES)]


def _near_pairs(cells: Ints) -> Ints:
    """(e, 2): pairs of vertices in the same or adjacent cells, by binary search."""
    size = BINS + 2
    keys = ((cells[:, 2] + 1) * size + cells[:, 1] + 1) * size + cells[:, 0] + 1
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    pairs: list[Ints] = []
    steps = [(z * size + y) * size + x for z in (0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    for step in (step for step in steps if step >= 0):
        # One vertex per cell is enough: the vertices of a cell are connected to each other.
        index = np.searchsorted(ordered, keys + step).clip(max=len(keys) - 1)
        hit = ordered[index] == keys + step
        pairs.append(np.stack([np.flatnonzero(hit), order[index[hit]]], 1))
    return np.concatenate(pairs)


def _labels(pairs: Ints, faces: Ints, count: int) -> Ints:
    """Connected component of each vertex, numbered from 0."""
    edges = np.stack([faces, np.roll(faces, -1, 1)], -1).reshape(-1, 2)
    links = np.concatenate([pairs, edges])
    label = np.arange(count)
    while True:
        least = np.minimum(label[links[:, 0]], label[links[:, 1]])
        updated = label.copy()
        np.minimum.at(updated, links[:, 0], least)
        np.minimum.at(updated, links[:, 1], least)
        updated = updated[updated]  # pointer jumping
        if (updated == label).all():
            return np.unique(label, return_inverse=True)[1].reshape(-1)
        label = updated


def _footprint(points: Points) -> tuple[float, float]:
    """Length and width of the narrowest upright box around the points, at any angle."""
    angles = np.arange(0, np.pi / 2, np.pi / 90)
    axes = np.stack([np.cos(angles), np.sin(angles)])
    along = points[:, :2] @ axes
    across = points[:, :2] @ np.stack([-axes[1], axes[0]])
    sides = np.stack([np.ptp(along, 0), np.ptp(across, 0)])
    best = sides[:, sides.prod(0).argmin()]
    return float(best.max()), float(best.min())


def _levels(heights: Points, apart: float = _HEIGHT_TOLERANCE) -> list[Ints]:
    """Groups of vertex indices in ascending order, split at gaps in height."""
    order = np.argsort(heights, kind="stable")
    breaks = np.flatnonzero(np.diff(heights[order]) > apart) + 1
    return [np.asarray(group, np.int64) for group in np.split(order, breaks)]


def _distinct(points: Points) -> Points:
    """One point of each group of points that lie in adjacent cells."""
    cells = discretise(points)
    label = _labels(_near_pairs(cells), np.zeros((0, 3), np.int64), len(cells))
    return points[np.unique(label, return_index=True)[1]]


def _corners(points: Points) -> int:
    """Number of points around the centre of a level; 0 for a single point."""
    points = _distinct(points)
    radius = np.linalg.norm(points[:, :2] - points[:, :2].mean(0), axis=1)
    return 0 if radius.max() < 2.5 * _BIN else int((radius > 0.4 * radius.max()).sum())


def _has_hole(points: Points, triangles: Points) -> bool:
    """Whether the vertical line through the centre intersects no face."""
    middle = (points[:, :2].min(0) + points[:, :2].max(0)) / 2
    flat = triangles[..., :2] - middle
    after = np.roll(flat, -1, 1)
    cross = flat[..., 0] * after[..., 1] - flat[..., 1] * after[..., 0]
    return not ((cross >= 0).all(1) | (cross <= 0).all(1)).any()


def _solid(points: Points, triangles: Points) -> Reading:
    """The kind of a single part, and its number of steps where it has some."""
    if _has_hole(points, triangles):
        return Reading("ring", None)
    levels = _levels(points[:, 2])
    corners = [_corners(points[level]) for level in levels]
    if len(levels) >= 4:
        return Reading("stairs", len(levels) - 1) if min(corners) >= 2 else UNKNOWN
    if len(levels) == 3:
        return Reading("diamond", None) if corners[0] == corners[2] == 0 else UNKNOWN
    if len(levels) < 2:
        return UNKNOWN
    if corners[1] == 0:
        return Reading("pyramid" if corners[0] <= 5 else "cone", None)
    if min(corners) >= 9:
        return Reading("cylinder", None)
    prisms = {3: "prism", 4: "box", 5: "prism", 6: "prism"}
    return Reading(prisms.get(corners[0]), None) if corners[0] == corners[1] else UNKNOWN


def _furniture(pieces: list[Points]) -> Reading:
    """The kind of several parts, and their number of legs or boards."""
    low = min(float(piece[:, 2].min()) for piece in pieces)
    height = max(float(piece[:, 2].max()) for piece in pieces) - low
    standing = [piece for piece in pieces if piece[:, 2].min() < low + _HEIGHT_TOLERANCE]
    carried = [piece for piece in pieces if piece[:, 2].min() >= low + _HEIGHT_TOLERANCE]
    if not carried:
        return UNKNOWN
    if len(standing) == 1:
        return Reading("lamp", None) if len(carried) == 2 else UNKNOWN
    if len(standing) == 2:
        upright = all(np.ptp(piece[:, 2]) > 0.8 * height for piece in standing)
        return Reading("shelf", len(carried)) if upright else UNKNOWN
    slab = min(carried, key=lambda piece: float(piece[:, 2].mean()))
    reach = float(slab[:, 2].min()) - _HEIGHT_TOLERANCE
    legs = sum(bool(piece[:, 2].max() > reach) for piece in standing)
    return Reading(_on_legs(slab, len(carried) - 1, height), legs)


def _on_legs(slab: Points, more: int, height: float) -> str:
    """The kind of furniture with a slab on three legs or more, and `more` parts above it."""
    length, width = _footprint(slab)
    if more:
        return "bed" if length > 1.15 * height else "chair"
    if length > 1.9 * width:
        return "bench"
    return "stool" if height > 1.07 * np.sqrt(length * width) else "table"


def read(vertices: Floats, faces: Ints) -> Reading:
    """Classify a mesh; kind is None if it matches no built-in shape."""
    if not len(faces) or not np.isfinite(vertices).all():
        return UNKNOWN
    points = np.asarray(normalised(np.asarray(vertices, np.float64)), np.float64)
    pieces = parts(points, faces)
    if not pieces:
        return UNKNOWN
    return _furniture(pieces) if len(pieces) > 1 else _solid(pieces[0], points[faces])


_KIND = re.compile(rf"\b({'|'.join(KINDS)})\b")
_COUNT = re.compile(rf"\b({'|'.join(NUMBERS.values())})\b[\w\s]*?\b(?:legs|boards|steps)\b")
_VALUES = {word: number for number, word in NUMBERS.items()}


def parse_caption(caption: str) -> Reading:
    """What a caption names."""
    kind, count = _KIND.search(caption), _COUNT.search(caption)
    return Reading(kind and kind[1], _VALUES[count[1]] if count else None)


def agrees(caption: str, vertices: Floats, faces: Ints) -> bool:
    """Whether kind and number of parts match the caption."""
    named, reading = parse_caption(caption), read(vertices, faces)
    counted = named.count in (None, reading.count)
    return counted and named.kind is not None and named.kind == reading.kind


def valid(vertices: Floats, faces: Ints) -> bool:
    """Whether it has four faces or more, without degenerate or duplicate ones."""
    if len(faces) < 4 or faces.min() < 0 or faces.max() >= len(vertices):
        return False
    if not np.isfinite(vertices).all():
        return False
    corners = np.sort(faces, 1)
    distinct = bool((corners[:, 1:] != corners[:, :-1]).all())
    once = len(np.unique(corners, axis=0)) == len(corners)
    return distinct and once and bool(has_area(vertices, faces).all())

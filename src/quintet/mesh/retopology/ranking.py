"""Order of several tries: by their distance to the input, and by their open edges."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

POINTS = 1024
OPEN = 0.5
"""A mesh with open edges alone counts as this share farther away."""


def best_first(meshes: Sequence[tuple[Any, Any]], points: Any) -> list[tuple[Any, Any]]:
    scores = [distance(*mesh, points) * (1 + OPEN * open_share(mesh[1])) for mesh in meshes]
    return [meshes[int(i)] for i in np.argsort(scores, kind="stable")]


def distance(vertices: Any, faces: Any, points: Any) -> float:
    """Chamfer distance of a mesh to points (n, 3); infinite without a face."""
    corners = vertices[faces]
    areas = np.linalg.norm(np.cross(*(corners[:, i] - corners[:, 0] for i in (1, 2))), axis=1)
    if not areas.sum() > 0:
        return float("inf")
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(faces), POINTS, p=areas / areas.sum())
    u, v = rng.random((2, POINTS, 1))
    u, v = np.where(u + v > 1, (1 - u, 1 - v), (u, v))
    a, b, c = corners[chosen].swapaxes(0, 1)
    there = nearest(a + u * (b - a) + v * (c - a), points[:POINTS])
    return float(sum(np.sqrt(each.clip(0)).mean() for each in there) / 2)


def nearest(a: Any, b: Any) -> tuple[Any, Any]:
    """Squared distances of the points of each cloud to the nearest of the other."""
    squared = np.square(a[:, None] - b).sum(-1)
    return squared.min(1), squared.min(0)


def open_share(faces: Any) -> float:
    """Share of the edges that have one face."""
    ends = np.stack([faces, np.roll(faces, -1, 1)], -1).reshape(-1, 2)
    uses = Counter(map(tuple, np.sort(ends, 1).tolist()))
    return sum(count == 1 for count in uses.values()) / max(1, len(uses))

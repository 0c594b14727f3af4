"""Points with unit normals: samples of a surface, and clouds from files."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.meshes.polygons import Floats, Ints


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
        raise ValueError("the surface has no area")
    chosen = np.searchsorted(ends, rng.random(count) * ends[-1], "right")
    chosen = np.minimum(chosen, np.flatnonzero(areas)[-1])
    u, v = rng.random((2, count))
    u, v = np.where(u + v > 1, (1 - u, 1 - v), (u, v))
    points = [x[chosen] + u * y[chosen] + v * z[chosen] for x, y, z in zip(a, first, second)]
    unit = normals / np.where(areas, areas, 1)
    return Samples(np.stack(points, 1), np.stack([axis[chosen] for axis in unit], 1), chosen)

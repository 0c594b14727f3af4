"""Simulated scans: from a clean mesh to the points that a scanner or a dense mesh would give."""

from math import ceil, log

import numpy as np
import numpy.typing as npt

from quintet.media.meshes.points import sample_surface
from quintet.media.meshes.polygons import Floats, Ints
from quintet.media.meshes.remesh import voxel_remesh
from quintet.mesh.retopology.scan_config import ScanConfig

SPARE = 3
"""Samples for each point where the density varies."""
LEAST = 0.1
"""Smallest density relative to the largest, about."""


def scan(
    vertices: npt.ArrayLike,
    faces: npt.ArrayLike,
    count: int,
    rng: np.random.Generator,
    config: ScanConfig,
) -> npt.NDArray[np.float32]:
    """(count, 6): points and unit normals in random order, all drawn from `rng`."""
    points, triangles = np.asarray(vertices, np.float64), np.asarray(faces, np.int64)
    is_clean = rng.random() < config.clean or not (config.remesh or config.holes or config.noise)
    if is_clean:
        return np.concatenate(_samples(points, triangles, count, rng), axis=1).astype(np.float32)
    side = float(np.ptp(points[triangles.reshape(-1)], axis=0).max())
    if rng.random() < config.remesh:
        low, high = log(config.min_resolution), log(config.max_resolution)
        points, triangles = voxel_remesh(points, triangles, round(np.exp(rng.uniform(low, high))))
        for _ in range(rng.integers(3)):
            points = smoothed(points, triangles)
    removed = config.holes * rng.random()
    whole = ceil(count / (1 - removed))
    if rng.random() < config.uneven:
        at, normals = _samples(points, triangles, SPARE * whole, rng)
        picked = _unevenly(at / side, whole, rng)
        at, normals = at[picked], normals[picked]
    else:
        at, normals = _samples(points, triangles, whole, rng)
    remaining = _outside_balls(at, count, rng)
    at, normals = at[remaining], normals[remaining]
    if config.noise:
        noise = rng.standard_normal((2, *at.shape), np.float32)
        at += noise[0] * (config.noise * side * rng.random() ** 2)
        normals += noise[1] * (config.normal_noise * rng.random() ** 2)
        normals /= np.sqrt(np.maximum(_squared(normals), 1e-9))[:, None]
    return np.concatenate([at, normals], axis=1).astype(np.float32)


def _samples(
    vertices: Floats, faces: Ints, count: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Points and normals, the outermost vertices among them: their box is that of the surface, as
    of the many points that a user gives."""
    points, normals, _ = sample_surface(vertices, faces, count, rng)
    corners = vertices[faces].reshape(-1, 3)
    outer = np.concatenate((corners.argmin(0), corners.argmax(0)))
    a, b, c = vertices[faces[outer // 3]].swapaxes(0, 1)
    across = np.cross(b - a, c - a)
    lengths = np.linalg.norm(across, axis=1)
    has_area = lengths > 0
    rows = rng.permutation(count)[: len(outer)][has_area]
    points[rows] = corners[outer[has_area]]
    normals[rows] = across[has_area] / lengths[has_area, None]
    return points, normals


def smoothed(vertices: Floats, faces: Ints) -> Floats:
    """Each vertex half way to the mean of its neighbours."""
    start, end = faces.reshape(-1), np.roll(faces, -1, 1).reshape(-1)
    # Of a closed surface every edge is passed in both directions.
    sums = np.stack([np.bincount(start, axis[end], len(vertices)) for axis in vertices.T], axis=1)
    degree = np.bincount(start, minlength=len(vertices))[:, None]
    return np.where(degree, (vertices + sums / np.maximum(degree, 1)) / 2, vertices)


def _squared(vectors: Floats) -> Floats:
    return np.einsum("ij,ij->i", vectors, vectors)


def _unevenly(points: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Indices of `count` points, drawn by a density that is a wave in space; in random order."""
    wave, phase = rng.normal(size=3), rng.random() * 2 * np.pi
    wave *= rng.uniform(3, 9) / np.linalg.norm(wave)
    density = LEAST ** ((1 + np.sin(points @ wave + phase)) / 2)
    arrival = rng.standard_exponential(len(points)) / density
    return np.sort(np.argpartition(arrival, count - 1)[:count])


def _outside_balls(points: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Indices of `count` points; those nearest to one to four of them are left out."""
    remaining = np.arange(len(points))
    shares = rng.dirichlet(np.ones(rng.integers(1, 5)))
    cuts = np.round(np.cumsum(shares) * (len(points) - count)).astype(int)
    for size in np.diff(cuts, prepend=0):
        centre = points[remaining[rng.integers(len(remaining))]]
        squared = _squared(points[remaining] - centre)
        if size:
            squared[np.argpartition(squared, size - 1)[:size]] = -1
        remaining = remaining[squared >= 0]
    return remaining

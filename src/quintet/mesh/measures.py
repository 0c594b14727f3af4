"""Distances between meshes, as point clouds on their surfaces."""

import numpy as np
import torch
from torch import Tensor

POINTS = 128
"""Points sampled per mesh."""


def chamfer(a: Tensor, b: Tensor, in_a: Tensor, in_b: Tensor) -> Tensor:
    """Symmetric Chamfer distance (n,) of point clouds (n, p, 3) and (n, q, 3) with masks."""
    squared = squared_distances(a.float(), b.float())
    largest = torch.finfo(squared.dtype).max
    squared = squared.masked_fill_(~(in_a[:, :, None] & in_b[:, None, :]), largest)
    a_to_b, b_to_a = squared.amin(2).sqrt(), squared.amin(1).sqrt()
    return (_mean(a_to_b, in_a) + _mean(b_to_a, in_b)) / 2


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(n, p, 3) and (n, q, 3) -> (n, p, q). Not by a matrix product, which loses small distances to
    rounding, and not by `torch.cdist`, which takes a block of threads for each on a GPU."""
    total = a.new_zeros(a.shape[0], a.shape[1], b.shape[1])
    for x, y in zip(a.unbind(-1), b.unbind(-1)):
        difference = x[:, :, None] - y[:, None, :]
        total.addcmul_(difference, difference)
    return total


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0).sum(1) / mask.sum(1).clamp_min(1)


def surface_points(vertices: np.ndarray, faces: np.ndarray, count: int = POINTS) -> np.ndarray:
    """(count, 3): area-weighted surface samples, deterministic for a mesh."""
    corners = np.asarray(vertices, np.float64)[faces[:, :3]]
    edges = corners[:, 1:] - corners[:, :1]
    areas = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    if not len(faces) or areas.sum() <= 0:
        return np.zeros((count, 3), np.float32)
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(faces), count, p=areas / areas.sum())
    first, second = rng.random((2, count, 1))
    flip = first + second > 1
    first, second = np.where(flip, 1 - first, first), np.where(flip, 1 - second, second)
    points = corners[chosen, 0] + first * edges[chosen, 0] + second * edges[chosen, 1]
    return points.astype(np.float32)


def nearest(points: Tensor, others: Tensor) -> Tensor:
    """(n, p, 3) and (m, p, 3) -> (n,): Chamfer distance to the nearest other cloud."""
    mask = torch.ones(others.shape[:2], dtype=torch.bool, device=others.device)
    clouds = (cloud.expand(len(others), -1, -1) for cloud in points)
    distances = [chamfer(cloud, others, mask, mask).amin() for cloud in clouds]
    return torch.stack(distances) if distances else points.new_zeros(0)

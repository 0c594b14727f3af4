"""What is measured of meshes, as points on their surface."""

import numpy as np
import torch
from torch import Tensor

POINTS = 128
"""Points that stand for a surface where many are compared."""


def chamfer(a: Tensor, b: Tensor, in_a: Tensor, in_b: Tensor) -> Tensor:
    """(n, p, 3) and (n, q, 3) with their masks -> (n,): mean distance to the nearest point of the
    other side, averaged over both ways."""
    # By differences and not by a matrix product, which rounds small distances away.
    apart = torch.cdist(a.float(), b.float(), compute_mode="donot_use_mm_for_euclid_dist")
    far = torch.finfo(apart.dtype).max
    apart = apart.masked_fill(~(in_a[:, :, None] & in_b[:, None, :]), far)
    there, back = apart.amin(2), apart.amin(1)
    return (_mean(there, in_a) + _mean(back, in_b)) / 2


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0).sum(1) / mask.sum(1).clamp_min(1)


def surface_points(vertices: np.ndarray, faces: np.ndarray, count: int = POINTS) -> np.ndarray:
    """(count, 3): points spread over the surface by area, the same for the same mesh."""
    corners = np.asarray(vertices, np.float64)[faces[:, :3]]
    edges = corners[:, 1:] - corners[:, :1]
    areas = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    if not len(faces) or areas.sum() <= 0:
        return np.zeros((count, 3), np.float32)
    draw = np.random.default_rng(0)
    chosen = draw.choice(len(faces), count, p=areas / areas.sum())
    first, second = draw.random((2, count, 1))
    flip = first + second > 1
    first, second = np.where(flip, 1 - first, first), np.where(flip, 1 - second, second)
    points = corners[chosen, 0] + first * edges[chosen, 0] + second * edges[chosen, 1]
    return points.astype(np.float32)


def nearest(points: Tensor, others: Tensor) -> Tensor:
    """(n, p, 3) and (m, p, 3) -> (n,): Chamfer distance to the nearest of the others."""
    whole = torch.ones(others.shape[:2], dtype=torch.bool, device=others.device)
    rows = []
    for one in points:
        mine = one.expand(len(others), -1, -1)
        rows.append(chamfer(mine, others, whole, whole).amin())
    return torch.stack(rows) if rows else points.new_zeros(0)

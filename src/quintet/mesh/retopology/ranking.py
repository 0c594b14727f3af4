"""Order of several tries: by their distance to the input."""

from collections.abc import Sequence

import numpy as np
import torch

from quintet.mesh.exhibits import Arrays
from quintet.mesh.measures import chamfer, surface_points

POINTS = 1024


def distances(meshes: Sequence[Arrays], points: np.ndarray) -> list[float]:
    """Chamfer distance of each mesh to points; infinite without a face."""
    target = torch.from_numpy(np.ascontiguousarray(points[:POINTS, :3]))[None]
    clouds = (torch.from_numpy(surface_points(*mesh, count=POINTS))[None] for mesh in meshes)
    every = lambda cloud: torch.ones(cloud.shape[:2], dtype=torch.bool)
    return [
        float(chamfer(cloud, target, every(cloud), every(target))) if len(mesh[1]) else float("inf")
        for mesh, cloud in zip(meshes, clouds)
    ]


def nearest_first(meshes: Sequence[Arrays], points: np.ndarray) -> list[Arrays]:
    return [meshes[i] for i in np.argsort(distances(meshes, points), kind="stable")]

"""Comparison of a mesh with the surface that it should have, and with its faces."""

import numpy as np
import torch

from quintet.media.meshes.points import Samples, sample_surface
from quintet.media.meshes.polygons import Floats, Ints, row_numbers
from quintet.media.meshes.remesh import closest
from quintet.mesh.geometry import discretise, has_area

CANDIDATES = 6
"""Faces for each point to which the distance is exact: those of the nearest samples and centres."""
BLOCK = 512
"""Points at a time, of which all distances are in memory."""
Surface = tuple[Floats, Ints]


def compare(mesh: Surface, target: Surface, count: int = 4096) -> dict[str, float]:
    """Distances in units of the target's longest side, from `count` points each; deterministic.

    chamfer: mean distance of points to the other surface, of both directions. hausdorff: the
    largest. normal_consistency: mean |cos| between the normals there. boundary and nonmanifold:
    shares of edges with one face, and with more than two. aspect: mean over the faces of
    4 sqrt(3) area / (sum of squared edges), 1 if equilateral, 0 without area. faces: their number.
    A mesh without area counts as a point in the middle of the target.
    """
    vertices, triangles = _arrays(target)
    used = vertices[triangles.reshape(-1)]
    low, size = used.min(0), np.ptp(used, axis=0)
    own = _arrays(mesh)
    pair = [((at - low) / size.max(), faces) for at, faces in (own, (vertices, triangles))]
    if not len(own[1]) or not has_area(*own).any():
        pair[0] = (size[None] / size.max() / 2, np.zeros((1, 3), np.int64))
    clouds = [_sampled(surface, count) for surface in pair]
    there = _distances(clouds[0], clouds[1], pair[1])
    back = _distances(clouds[1], clouds[0], pair[0])
    distances, cosines = (np.stack(each) for each in zip(there, back))
    return {
        "chamfer": float(distances.mean()),
        "hausdorff": float(distances.max()),
        "normal_consistency": float(cosines.mean()),
        **structure(*own),
    }


def structure(vertices: Floats, faces: Ints) -> dict[str, float]:
    """What `compare` says of the faces alone."""
    if not len(faces):
        return {"boundary": 0.0, "nonmanifold": 0.0, "aspect": 0.0, "faces": 0.0}
    edges = np.sort(np.stack([faces, np.roll(faces, -1, 1)], -1).reshape(-1, 2), 1)
    _, uses = np.unique(row_numbers(edges, len(vertices)), return_counts=True)
    corners = vertices[faces]
    sides = np.square(corners - np.roll(corners, 1, 1)).sum((1, 2))
    areas = np.linalg.norm(_normals(corners), axis=1) / 2
    return {
        "boundary": float((uses == 1).mean()),
        "nonmanifold": float((uses > 2).mean()),
        "aspect": float((4 * 3**0.5 * areas / np.where(sides, sides, 1)).mean()),
        "faces": float(len(faces)),
    }


def exact_faces(mesh: Surface, other: Surface, bins: int) -> tuple[float, bool]:
    """Share of the faces of `other` that the mesh has, by the bins of their corners in -1..1, in
    any order and from any corner on; and whether both have the same."""
    ours, theirs = _keys(mesh, bins), _keys(other, bins)
    return len(ours & theirs) / max(len(theirs), 1), ours == theirs


def _keys(surface: Surface, bins: int) -> set[tuple[int, ...]]:
    x, y, z = discretise(np.asarray(surface[0]), bins).T
    keys = ((z * bins + y) * bins + x)[np.asarray(surface[1])]
    first = (keys.argmin(1)[:, None] + np.arange(keys.shape[1])) % keys.shape[1]
    return set(map(tuple, np.take_along_axis(keys, first, 1).tolist()))


def _arrays(surface: Surface) -> Surface:
    return np.asarray(surface[0], np.float64), np.asarray(surface[1], np.int64)


def _normals(corners: Floats) -> Floats:
    return np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _sampled(surface: Surface, count: int) -> Samples:
    if len(surface[0]) == 1:
        zeros = np.zeros(count, np.int64)
        return Samples(surface[0][zeros], np.zeros((count, 3)), zeros)
    return sample_surface(*surface, count, np.random.default_rng(0))


def _distances(points: Samples, samples: Samples, surface: Surface) -> tuple[Floats, Floats]:
    """Of each point the distance to the surface, and |cos| of its normal and the one there."""
    corners = surface[0][surface[1]]
    marks = np.concatenate([samples.points, corners.mean(1)])
    face = np.concatenate([samples.faces, np.arange(len(corners))])
    face = face[nearest(points.points, marks, CANDIDATES)]
    places = np.repeat(points.points.T, CANDIDATES, 1)
    triangles = corners[face.reshape(-1)].transpose(1, 2, 0)
    squared = np.square(places - closest(places, triangles)).sum(0).reshape(face.shape)
    normals = _normals(corners)
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-300)
    cosines = np.abs(np.einsum("nd,nkd->nk", points.normals, normals[face]))
    # On an edge two faces are equally near: the one whose normal agrees more.
    least = squared.min(1)
    cosines[squared > least[:, None] + 1e-12] = 0
    return np.sqrt(least), cosines.max(1)


def nearest(points: Floats, others: Floats, count: int) -> Ints:
    """(n, count): the nearest of the others to each point."""
    a, b = (torch.from_numpy(np.asarray(each, np.float32)) for each in (points, others))
    squares = b.square().sum(1)
    # A matrix product loses small differences; whoever calls this compares the few exactly.
    blocks = (torch.addmm(squares, block, b.T, alpha=-2) for block in a.split(BLOCK))
    return torch.cat([each.topk(count, largest=False).indices for each in blocks]).numpy()

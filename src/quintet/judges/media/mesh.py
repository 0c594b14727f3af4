"""Judges of meshes: distances of surfaces, and of sets of shapes.

Chamfer and Hausdorff distance and normal consistency (arXiv 1812.03828) compare an output with
its reference. Coverage and minimum matching distance (arXiv 1707.02392) and the accuracy of a
nearest-neighbour classifier (1-NNA, arXiv 1906.12320) compare sets of shapes.

All of them see points on the surfaces: p points (p, 3) with their normals. Nearest neighbours are
exact, in fp64, by comparing all points. Points have gaps, and only the same triangles get the same
points: a sphere of diameter 1 is at a Chamfer distance of 0 from itself, and of 0.012 from itself
in other triangles.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.judges.base import Array, Judge, Options, PairJudge, SetJudge
from quintet.judges.networks import device
from quintet.judges.receipt import content_digest
from quintet.media.errors import BadFile
from quintet.media.meshes.files import Mesh, read_mesh, readable, write_mesh
from quintet.media.meshes.polygons import closedness

PAIR_POINTS = 4096
SET_POINTS = 2048
"""The number in both papers."""
SEED = 0
_CHUNK = 1024
"""Points whose distances to all others are in memory at once."""
_MOST = 64
"""Results of `_once` in memory."""
T = TypeVar("T")


SUFFIXES = readable()
NOTHING = Mesh(np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]), np.array([[0, 1, 2]]))
"""Stands for an output without a surface."""


def read(path: Path | str) -> Mesh:
    """Vertices (v, 3) fp64 and triangles (f, 3), as `preparation` says."""
    mesh = read_mesh(path, upright=True)
    if not _has_surface(mesh):
        raise BadFile(Path(path), "has a surface without area", "remove or repair it")
    return _in_unit_cube(mesh)


def sample_of(mesh: Mesh) -> Mesh:
    """As `read` after `write`. A mesh without a surface must not raise scores by dropping out."""
    vertices = np.asarray(mesh.vertices, np.float64)
    mesh = Mesh(vertices, mesh.faces)
    return _in_unit_cube(mesh if _has_surface(mesh) else NOTHING)


def write(stem: Path, mesh: Mesh) -> None:
    mesh = mesh if _has_surface(mesh) else NOTHING
    write_mesh(stem.with_suffix(".ply"), mesh.vertices, mesh.faces)


def _has_surface(mesh: Mesh) -> bool:
    if not len(mesh.faces):
        return False
    side = np.ptp(mesh.vertices[np.unique(mesh.faces)], axis=0).max()
    return bool(_areas(mesh).sum() > 1e-12 * side**2)


def _in_unit_cube(mesh: Mesh) -> Mesh:
    used = mesh.vertices[np.unique(mesh.faces)]
    low, high = used.min(0), used.max(0)
    vertices = (mesh.vertices - (low + high) / 2) / (high - low).max()
    distinct, index = np.unique(vertices, axis=0, return_inverse=True)
    faces = index.reshape(-1)[mesh.faces]
    whole = (faces != np.roll(faces, 1, axis=1)).all(1)
    return Mesh(distinct, faces[whole])


def preparation() -> dict[str, str]:
    return {
        "axes": "z up (obj, glb, gltf and y-up dae files turned)",
        "scale": "each mesh by itself: centre of its box at 0, longest side 1 (unit cube)",
        "vertices": "equal ones merged, faces dropped that have one twice",
        "polygons": "split into fans of triangles",
    }


class Points(NamedTuple):
    positions: Tensor
    """(p, 3) in fp64."""
    normals: Tensor
    """(p, 3), of length 1."""


def _crosses(mesh: Mesh) -> Array:
    corners = np.asarray(mesh.vertices, np.float64)[mesh.faces]
    return np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _areas(mesh: Mesh) -> Array:
    return np.linalg.norm(_crosses(mesh), axis=1) / 2


def sample(mesh: Mesh, count: int) -> Points:
    """Points drawn evenly, with one seed: a mesh has the distance 0 from itself."""
    crosses, areas = _crosses(mesh), _areas(mesh)
    draw = np.random.default_rng(SEED)
    chosen = draw.choice(len(areas), count, p=areas / areas.sum())
    first, second = draw.random((2, count, 1))
    root = np.sqrt(first)
    a, b, c = np.moveaxis(np.asarray(mesh.vertices, np.float64)[mesh.faces[chosen]], 1, 0)
    positions = (1 - root) * a + root * (1 - second) * b + root * second * c
    normals = crosses[chosen] / (2 * areas[chosen, None])
    return Points(torch.from_numpy(positions), torch.from_numpy(normals))


def nearest(points: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """(p, 3), (q, 3) -> (p,) twice: distance to the nearest of the others, and which that is."""
    others = others.to(device())
    rows = [
        # Not by a matrix product, which loses small distances to rounding.
        torch.cdist(chunk, others, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        for chunk in points.to(device()).split(_CHUNK)
    ]
    distances, indices = ([row[i] for row in rows] for i in (0, 1))
    return torch.cat(distances).cpu(), torch.cat(indices).cpu()


_results: dict[tuple[str, ...], Any] = {}


def _once(compute: Callable[..., T], *inputs: Any) -> T:
    """Distances that several judges of the same samples share."""
    key = (compute.__name__, *(content_digest(one) for one in inputs))
    if key not in _results:
        if len(_results) >= _MOST:
            _results.pop(next(iter(_results)))
        _results[key] = compute(*inputs)
    return _results[key]


class _SurfaceJudge(PairJudge):
    medium = "mesh"
    convention: str

    def facts(self) -> dict[str, str]:
        return {
            "convention": self.convention,
            "points": f"{PAIR_POINTS} of each surface, by area, seed {SEED}",
            "neighbours": "exact, fp64",
        }

    def rows(self, references: Sequence[Mesh], outputs: Sequence[Mesh]) -> Array:
        pairs = zip(references, outputs, strict=True)
        return np.array([self.value(*_once(_both_ways, *pair)) for pair in pairs], np.float64)

    @abstractmethod
    def value(self, one: "Way", other: "Way") -> float: ...


class Way(NamedTuple):
    """From the points of one surface to the nearest of another."""

    distances: Tensor
    """(p,)."""
    cosines: Tensor
    """(p,): of the normals at both points."""


def _both_ways(reference: Mesh, output: Mesh) -> tuple[Way, Way]:
    a, b = sample(reference, PAIR_POINTS), sample(output, PAIR_POINTS)
    return _way(a, b), _way(b, a)


def _way(a: Points, b: Points) -> Way:
    distances, index = nearest(a.positions, b.positions)
    return Way(distances, (a.normals * b.normals[index]).sum(-1))


class Chamfer(_SurfaceJudge):
    name, better, unit = "chamfer", "lower", "sides of the unit cube"
    about = "Mean distance from points of each surface to the nearest point of the other."
    convention = "not squared; mean of both directions (arXiv 1812.03828, Chamfer-L1)"

    def value(self, one: Way, other: Way) -> float:
        return float(one.distances.mean() + other.distances.mean()) / 2


class Hausdorff(_SurfaceJudge):
    name, better, unit = "hausdorff", "lower", "sides of the unit cube"
    about = "Largest distance from a point of either surface to the nearest point of the other."
    convention = "maximum of both directions"

    def value(self, one: Way, other: Way) -> float:
        return max(float(way.distances.max()) for way in (one, other))


class NormalConsistency(_SurfaceJudge):
    name, better = "normal_consistency", "higher"
    about = "How parallel the normals of the two surfaces are at nearest points; 1 is best."
    convention = (
        "mean absolute cosine of face normals (orientation does not count); mean of both "
        "directions (arXiv 1812.03828)"
    )

    def value(self, one: Way, other: Way) -> float:
        return sum(float(way.cosines.abs().mean()) for way in (one, other)) / 2


class ClosedEdges(PairJudge):
    name, medium, better = "closed_edges", "mesh", "higher"
    about = "Share of the output's edges that have exactly two faces; 1 for a closed surface."

    def facts(self) -> dict[str, str]:
        return {"convention": "of the output alone; vertices of equal position are one"}

    def rows(self, references: Sequence[Mesh], outputs: Sequence[Mesh]) -> Array:
        return np.array([closedness(mesh.faces) for mesh in outputs], np.float64)


class _ShapesJudge(SetJudge):
    medium = "mesh"
    convention: str

    def facts(self) -> dict[str, str]:
        return {
            "convention": self.convention,
            "shapes": "mean squared distances to the nearest point, sum of both directions (CD)",
            "points": f"{SET_POINTS} of each surface, by area, seed {SEED}",
            "neighbours": "exact, fp64",
        }

    def features(self, samples: Sequence[Mesh]) -> Array:
        """(n, p, 3): points on the surface of each mesh."""
        return np.stack([sample(mesh, SET_POINTS).positions.numpy() for mesh in samples])

    def distance(self, references: Array, outputs: Array) -> float:
        return float(self.shares(references, outputs).mean())

    @abstractmethod
    def shares(self, references: Array, outputs: Array) -> Array:
        """One per shape, given its neighbours: shapes drawn twice would be each other's."""


class Coverage(_ShapesJudge):
    name, better = "coverage", "higher"
    about = "Share of references that are the nearest reference of some output (COV)."
    convention = "arXiv 1707.02392; of equal distances, the first reference"

    def shares(self, references: Array, outputs: Array) -> Array:
        matched = _once(squared_chamfer, references, outputs).argmin(0)
        return np.isin(np.arange(len(references)), matched).astype(np.float64)


class MinimumMatching(_ShapesJudge):
    name, better, unit = "minimum_matching", "lower", "squared sides of the unit cube"
    about = "Mean distance of the references from their nearest outputs (MMD)."
    convention = "arXiv 1707.02392"

    def shares(self, references: Array, outputs: Array) -> Array:
        return _once(squared_chamfer, references, outputs).min(1)


class NearestNeighbour(_ShapesJudge):
    name = "nearest_neighbour"
    about = (
        "Accuracy of a nearest-neighbour classifier of references and outputs (1-NNA): 0.5 is "
        "best, 1 means that the sets differ; below 0.5, outputs repeat references."
    )
    better = "lower"
    convention = "arXiv 1906.12320; leave one out, sets of equal size"

    def shares(self, references: Array, outputs: Array) -> Array:
        count = len(references)
        if len(outputs) != count:
            raise RunError(
                f"{self.name} compares sets of equal size, and these have {count} references and "
                f"{len(outputs)} outputs"
            )
        across, first, second = (
            _once(squared_chamfer, *sets)
            for sets in ((references, outputs), (references,) * 2, (outputs,) * 2)
        )
        distances = np.block([[first, across], [across.T, second]])
        np.fill_diagonal(distances, np.inf)
        is_output = np.arange(2 * count) >= count
        return (is_output[distances.argmin(1)] == is_output).astype(np.float64)


def squared_chamfer(a: Array, b: Array) -> Array:
    """(n, p, 3), (m, q, 3) -> (n, m), with an error of about 1e-15 in the unit cube."""
    left, right = (torch.from_numpy(clouds).double().to(device()) for clouds in (a, b))
    # A product of (p, 5) and (5, q): in fp64 and for squares, it loses nothing that counts.
    left = torch.cat([-2 * left, left.square().sum(-1, True), torch.ones_like(left[..., :1])], -1)
    right = torch.cat([right, torch.ones_like(right[..., :1]), right.square().sum(-1, True)], -1)
    rows = [torch.stack([_both_means(one @ other.T) for other in right]) for one in left]
    return torch.stack(rows).cpu().numpy()


def _both_means(squares: Tensor) -> Tensor:
    return squares.amin(1).clamp_min(0).mean() + squares.amin(0).clamp_min(0).mean()


JUDGES: tuple[type[Judge], ...] = (
    Chamfer, Hausdorff, NormalConsistency, ClosedEdges, Coverage, MinimumMatching, NearestNeighbour,
)  # fmt: skip


def reader(options: Options) -> tuple[Callable[[Path], Mesh], dict[str, str]]:
    return read, preparation()

"""Retopology beside quadric decimation and the nearest training mesh.

    python benchmarks/retopology.py RUN [--scans FOLDER] [--count 32] [--tries 4]
        [--below chamfer=0.01 hausdorff=decimation] [--above exact=0.5]

Each held-out mesh of the run is remeshed from voxels to about 20,000 faces, with noise of 0.5 % of
its longest side; the model makes a mesh of the original's number of faces from points of that, and
is measured against the original, as are decimation of the dense mesh to the number of faces that
the model made, and the nearest training mesh in the same box. With `--scans`, dense meshes of a
folder are the inputs, and what is measured against. Prints a row of means for each as JSON, and a
table. A bar is a number, or the row of a baseline; the exit status is 1 where the model misses one.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet import rooms
from quintet.engine.runs.folder import RunFolder
from quintet.media.meshes.files import read_mesh, readable
from quintet.media.meshes.points import sample_surface
from quintet.media.meshes.remesh import MAX_RESOLUTION, voxel_remesh
from quintet.mesh.measures import chamfer
from quintet.mesh.retopology.decimation import decimate
from quintet.mesh.retopology.measures import Surface, compare, exact_faces

Row = dict[str, float]
POINTS = 512
"""Points by which the nearest mesh is chosen."""


def main(words: Sequence[str] | None = None) -> int:
    flags = _flags(words)
    from quintet.mesh.retopology.model import Retopology

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Retopology.from_pretrained(flags.run).to(device).eval()
    sources = _sources(flags.run)
    nearest = NearestMesh(_meshes(sources("train"), flags.training))
    cases = scanned(flags.scans, flags.faces) if flags.scans else held_out(sources("valid"), flags)
    rows: dict[str, list[Row]] = defaultdict(list)
    for case in islice(cases, flags.count):
        for name, row in measured(model, nearest, *case, tries=flags.tries).items():
            rows[name].append(row)
    if not rows:
        print("nothing to measure: the run has no held-out meshes, or the folder has no meshes")
        return 2
    means = {name: _means(each) for name, each in rows.items()}
    for name, row in means.items():
        print(json.dumps({"system": name, "meshes": len(rows[name]), **row}))
    print(table(means))
    missed = misses(means, flags.below, flags.above)
    print("\n".join(f"missed: {each}" for each in missed))
    return 1 if missed else 0


def _flags(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run of mesh/retopology")
    parser.add_argument("--scans", type=Path, help="folder of dense meshes")
    parser.add_argument("--count", type=int, default=32, help="meshes at most")
    parser.add_argument("--tries", type=int, default=4, help="of the model; the nearest counts")
    parser.add_argument("--faces", type=int, default=500, help="wished of each of the scans")
    parser.add_argument("--dense", type=int, default=20_000, help="faces of the remeshed input")
    parser.add_argument("--noise", type=float, default=0.005, help="of the longest side")
    parser.add_argument("--training", type=int, default=2000, help="training meshes to look among")
    for name in ("below", "above"):
        parser.add_argument(f"--{name}", nargs="*", default=[], metavar="MEASURE=BAR")
    return parser.parse_args(words)


# -- inputs ---------------------------------------------------------------------------------


def _sources(run: Path) -> Callable[[Any], Any]:
    from quintet.mesh.retopology.data import open_scans

    folder = RunFolder.open(run)
    recipe = rooms.recipe_of(folder.about, folder.path)
    return lambda split: open_scans(recipe, split).source


def _meshes(source: Any, count: int) -> Iterator[Surface]:
    for index in range(min(count, len(source) if source else 0)):
        item = source.keyed(index, None)
        yield item["vertices"].numpy().astype(np.float64), item["faces"].numpy()


Case = tuple[Surface, Surface, int]
"""Dense input, what is measured against, and the wished number of faces."""


def held_out(source: Any, flags: argparse.Namespace) -> Iterator[Case]:
    for number, mesh in enumerate(_meshes(source, flags.count)):
        yield dense(mesh, flags.dense, flags.noise, number), mesh, len(mesh[1])


def scanned(folder: Path, faces: int) -> Iterator[Case]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in readable():
            mesh = tuple(read_mesh(path, upright=True))
            yield mesh, mesh, faces


def dense(mesh: Surface, faces: int, noise: float, seed: int) -> Surface:
    """A remesh of about so many faces, with noise relative to the longest side."""
    resolution = 48
    for _ in range(2):  # the number of faces grows with its square
        vertices, triangles = voxel_remesh(*mesh, resolution)
        wished = resolution * (faces / len(triangles)) ** 0.5
        resolution = int(np.clip(round(wished), 8, MAX_RESOLUTION))
    vertices, triangles = voxel_remesh(*mesh, resolution)
    deviation = noise * float(np.ptp(vertices, axis=0).max())
    rng = np.random.default_rng(seed)
    return vertices + rng.normal(size=vertices.shape) * deviation, triangles


# -- systems --------------------------------------------------------------------------------


class NearestMesh:
    """Finds the mesh with the smallest Chamfer distance, all brought into the same box."""

    def __init__(self, meshes: Iterable[Surface]) -> None:
        self.meshes = list(meshes)
        rng = np.random.default_rng
        clouds = [sample_surface(*mesh, POINTS, rng(0)).points for mesh in self.meshes]
        boxed = [_boxed(cloud)[0] for cloud in clouds]
        self.clouds = torch.from_numpy(np.stack(boxed).astype(np.float32))

    def __call__(self, points: np.ndarray) -> Surface:
        """The nearest to points (n, 3 or more), in their box."""
        places, centre, half = _boxed(points[:, :3])
        chosen = np.random.default_rng(0).choice(len(places), POINTS)
        own = torch.from_numpy(places[chosen].astype(np.float32))[None]
        mask = torch.ones(1, POINTS, dtype=torch.bool)
        blocks = self.clouds.split(64)
        distances = [chamfer(own.expand_as(block), block, mask, mask) for block in blocks]
        vertices, faces = self.meshes[int(torch.cat(distances).argmin())]
        used = np.unique(faces)
        placed = np.array(vertices, np.float64)
        placed[used] = _boxed(placed[used])[0] * half + centre
        return placed, faces


def _boxed(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Points with the longest side in -1..1, the centre and half of that side."""
    low, high = points.min(0), points.max(0)
    half = float((high - low).max()) / 2 or 1.0
    return (points - (low + high) / 2) / half, (low + high) / 2, half


def measured(
    model: Any, nearest: NearestMesh, scan: Surface, target: Surface, faces: int, *, tries: int
) -> dict[str, Row]:
    points = sample_surface(*scan, 4 * model.config.points, np.random.default_rng(0))
    rows = np.concatenate(points[:2], axis=1)
    place = model.surface(rows, seed=0).fit  # whose bins count for equal faces
    own: list[Surface] = []

    def retopologised() -> Surface:
        own.append(model.retopologise(rows, faces=faces, count=tries, seed=0)[0])
        return own[0]

    systems: dict[str, Callable[[], Surface]] = {
        "model": retopologised,
        "decimation": lambda: decimate(*scan, max(4, len(own[0][1]))),
        "nearest": lambda: nearest(rows),
    }
    found: dict[str, Row] = {}
    for name, system in systems.items():
        start = time.perf_counter()
        mesh = system()
        seconds = time.perf_counter() - start
        found[name] = {**compare(mesh, target), "seconds": seconds}
        if scan is not target:
            pair = [(place(np.asarray(at)), polygons) for at, polygons in (mesh, target)]
            share, same = exact_faces(*pair, model.config.bins)
            found[name] |= {"exact": share, "equal": float(same)}
    return found


# -- the table ------------------------------------------------------------------------------


def _means(rows: Sequence[Row]) -> Row:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def table(means: Mapping[str, Row]) -> str:
    lines = [f"| | {' | '.join(means)} |", "|---" * (len(means) + 1) + "|"]
    for name in next(iter(means.values())):
        lines.append(f"| {name} | {' | '.join(f'{row[name]:.4g}' for row in means.values())} |")
    return "\n".join(lines)


def misses(means: Mapping[str, Row], below: Sequence[str], above: Sequence[str]) -> list[str]:
    found: list[str] = []
    for sign, bars in ((1, below), (-1, above)):
        for bar in bars:
            name, _, text = bar.partition("=")
            if name not in means["model"]:
                raise SystemExit(f"{name} is no measure; known: {', '.join(means['model'])}")
            limit = means[text][name] if text in means else float(text)
            value = means["model"][name]
            if not sign * value <= sign * limit:
                side = "below" if sign > 0 else "above"
                found.append(f"{name} is {value:.4g}, not {side} {limit:.4g}")
    return found


if __name__ == "__main__":
    sys.exit(main())

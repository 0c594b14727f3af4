"""Retopology beside quadric decimation and the nearest training mesh.

    python benchmarks/retopology.py RUN [--scans FOLDER] [--count 32] [--tries 4]
        [--below loss=guess chamfer=1.2*decimation,1.5*bin] [--above valid=0.9]

Each held-out mesh of the run is remeshed from voxels to about 20,000 faces, with noise of 0.5 % of
its longest side; the model makes a mesh of the original's number of faces from points of that, and
is measured against the original, as are decimation of the dense mesh to the number of faces that
the model made, the nearest training mesh in the same box, and with `--clean` what the model makes
of the original itself. `--missing` leaves out points around a few; `--dense 0` takes those of the
original. With `--scans`, dense meshes of a folder are the inputs, and what is measured against.
Prints a row of means for each as JSON, and a table. A bar is a number, or one times the row of
another system, a `bin` of the grid, or a `guess`, the loss of one; of several, the largest counts.
The exit status is 1 where the model misses one.
"""

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from quintet import rooms
from quintet.engine.runs.folder import RunFolder, read_lines
from quintet.media.meshes.files import read_mesh, readable
from quintet.media.meshes.points import sample_surface
from quintet.media.meshes.remesh import MAX_RESOLUTION, voxel_remesh
from quintet.mesh.agreement import valid
from quintet.mesh.exhibits import MeshSheet
from quintet.mesh.geometry import EXTENT
from quintet.mesh.measures import chamfer
from quintet.mesh.retopology.decimation import decimate
from quintet.mesh.retopology.measures import Surface, compare, exact_faces

Row = dict[str, float]
POINTS = 512
"""Points by which the nearest mesh is chosen."""
PICTURED = 12
"""Meshes of the picture, the first."""


def main(words: Sequence[str] | None = None) -> int:
    flags = _flags(words)
    from quintet.mesh.retopology.model import Retopology

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Retopology.from_pretrained(flags.run).to(device).eval()
    sources = _sources(flags.run)
    nearest = NearestMesh(_meshes(sources("train"), flags.training))
    cases = scanned(flags.scans, flags.faces) if flags.scans else held_out(sources("valid"), flags)
    rows: dict[str, list[Row]] = defaultdict(list)
    pictured: list[list[Any]] = []
    for case in islice(cases, flags.count):
        found, made = measured(model, nearest, *case, flags)
        pictured += [[*case[:2], made]][: PICTURED - len(pictured)]
        for name, row in found.items():
            rows[name].append(row)
    if not rows:
        print("nothing to measure: the run has no held-out meshes, or the folder has no meshes")
        return 2
    if flags.picture:
        flags.picture.mkdir(parents=True, exist_ok=True)
        texts = [f"{len(row[2][1])} faces" for row in pictured]
        titles = ["input", "original", "model"]
        MeshSheet("retopology", pictured, titles, texts, files=False).write(flags.picture)
    means = {name: _means(each) for name, each in rows.items()}
    means["model"]["loss"] = last_loss(flags.run)
    for name, row in means.items():
        print(json.dumps({"system": name, "meshes": len(rows[name]), **row}))
    print(table(means))
    units = {"bin": 1 / (model.config.bins * EXTENT), "guess": math.log(model.config.bins)}
    missed = misses(means, flags.below, flags.above, units)
    print("\n".join(f"missed: {each}" for each in missed))
    return 1 if missed else 0


def _flags(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run of mesh/retopology")
    parser.add_argument("--scans", type=Path, help="folder of dense meshes")
    parser.add_argument("--count", type=int, default=32, help="meshes at most")
    parser.add_argument("--tries", type=int, default=4, help="of the model; the nearest counts")
    parser.add_argument("--faces", type=int, default=500, help="wished of each of the scans")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--raw", action="store_true", help="leave cracks of the model open")
    parser.add_argument("--dense", type=int, default=20_000, help="faces of the remeshed input")
    parser.add_argument("--noise", type=float, default=0.005, help="of the longest side")
    parser.add_argument("--missing", type=float, default=0.0, help="share of the points left out")
    parser.add_argument("--clean", action="store_true", help="also of the original itself")
    parser.add_argument("--training", type=int, default=2000, help="training meshes to look among")
    parser.add_argument("--picture", type=Path, help="folder for a picture of the first meshes")
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
    """A remesh of about so many faces, 0 for the mesh itself, with noise relative to the longest
    side."""
    if not faces:
        return mesh
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
    model: Any, nearest: NearestMesh, scan: Surface, target: Surface, faces: int, flags: Any
) -> tuple[dict[str, Row], Surface]:
    """A row of each system, and the model's mesh."""
    from quintet.mesh.retopology.model import limits

    rows = rows_of(scan, 4 * model.config.points, flags.missing)
    place = model.surface(rows, seed=0).fit  # whose bins count for equal faces
    most = int(limits(torch.tensor(faces), 0))  # as many do not end
    own: list[Surface] = []

    def retopologised(rows: np.ndarray) -> Surface:
        sampling = {"count": flags.tries, "temperature": flags.temperature, "seed": 0}
        own.append(model.retopologise(rows, faces=faces, mend=not flags.raw, **sampling)[0])
        return own[-1]

    systems: dict[str, Callable[[], Surface]] = {
        "model": lambda: retopologised(rows),
        "decimation": lambda: decimate(*scan, max(4, len(own[0][1]))),
        "nearest": lambda: nearest(rows),
    }
    if flags.clean:
        systems["clean"] = lambda: retopologised(rows_of(target, 4 * model.config.points, 0))
    if not flags.scans:
        systems["original"] = lambda: target
    found: dict[str, Row] = {}
    for name, system in systems.items():
        start = time.perf_counter()
        mesh = system()
        seconds = time.perf_counter() - start
        whole = len(mesh[1]) < most and valid(*mesh)
        row = {**compare(mesh, target), "valid": float(whole), "seconds": seconds}
        row["face_error"] = abs(len(mesh[1]) / faces - 1)
        if not flags.scans:
            pair = [(place(np.asarray(at)), polygons) for at, polygons in (mesh, target)]
            share, same = exact_faces(*pair, model.config.bins)
            row |= {"exact": share, "equal": float(same)}
        found[name] = row
    return found, own[0]


def rows_of(surface: Surface, count: int, missing: float) -> np.ndarray:
    """Points with normals, without a share of them around three."""
    rng = np.random.default_rng(0)
    samples = sample_surface(*surface, round(count / (1 - missing)), rng)
    rows = np.concatenate(samples[:2], axis=1)
    for left in range(2, -1, -1) if missing else ():
        distances = np.square(rows[:, :3] - rows[rng.integers(len(rows)), :3]).sum(1)
        gone = (len(rows) - count) // (left + 1)
        rows = rows[np.sort(np.argsort(distances, kind="stable")[gone:])]
    return rows


def last_loss(run: Path) -> float:
    """Of the last evaluation."""
    path = RunFolder.open(run).metrics
    losses = [each["val/loss"] for each in read_lines(path) if "val/loss" in each]
    return losses[-1] if losses else math.nan


# -- the table ------------------------------------------------------------------------------


def _means(rows: Sequence[Row]) -> Row:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def table(means: Mapping[str, Row]) -> str:
    lines = [f"| | {' | '.join(means)} |", "|---" * (len(means) + 1) + "|"]
    for name in next(iter(means.values())):
        cells = (f"{row[name]:.4g}" if name in row else "" for row in means.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def misses(
    means: Mapping[str, Row],
    below: Sequence[str],
    above: Sequence[str],
    units: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    found: list[str] = []
    for sign, bars in ((1, below), (-1, above)):
        for bar in bars:
            name, _, text = bar.partition("=")
            if name not in means["model"]:
                raise SystemExit(f"{name} is no measure; known: {', '.join(means['model'])}")
            known = {each: row[name] for each, row in means.items() if name in row} | {**units}
            limit = max(_limit(each, known) for each in text.split(","))
            value = means["model"][name]
            if not sign * value <= sign * limit:
                side = "below" if sign > 0 else "above"
                found.append(f"{name} is {value:.4g}, not {side} {limit:.4g}")
    return found


def _limit(text: str, known: Mapping[str, float]) -> float:
    """Of a bar: 0.01, decimation, 1.2*decimation."""
    factor, _, name = text.rpartition("*")
    return float(factor or 1) * known[name] if name in known else float(text)


if __name__ == "__main__":
    sys.exit(main())

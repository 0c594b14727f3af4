"""Mesh datasets: a folder of files, or built-in furniture and solids.

A sample is {"vertices": float32 (v, 3) between -1 and 1, "faces": int64 (f, k), "text": str}, in
canonical order. Augmentation is drawn from the sample's key; without a key there is none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b, file_digest
from math import ceil, cos, radians, sin, sqrt
from os import fsencode
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quintet.engine.data.plans import order_of
from quintet.engine.data.shared_rows import SharedRows
from quintet.engine.data.source import Source
from quintet.engine.data.stream import DAMAGE
from quintet.media import pixels
from quintet.media.errors import BadFile, OutOfRange
from quintet.media.meshes import scenes
from quintet.media.meshes.files import count_faces, read_mesh, readable, simplify, unread
from quintet.media.splits import Builtin, InFolder, Key, Problem, Split, check_files
from quintet.mesh import shapes
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.geometry import (
    BINS,
    Floats,
    Ints,
    canonical,
    face_neighbours,
    has_area,
    merge,
    normalised,
    numbered,
    vertex_ranks,
    weld,
)
from quintet.shared.captions import folder_caption
from quintet.shared.code_cache import Encodable, VariantKey

Mesh = tuple[npt.NDArray[np.float32], Ints]
PREPARED = 1
"""Version of the preparation; increment on any change, to invalidate cached codes."""
SAMPLED = 512
"""Meshes that are read to find out how many faces a batch has."""
INCLUDE = "raise it, or too_large = 'simplify'"


# -- one mesh -------------------------------------------------------------------------------


def prepare(vertices: Floats, faces: Ints, config: MeshDataConfig) -> Mesh:
    """Normalise, merge by bins, drop degenerate and duplicate faces, order canonically.

    Raises ValueError if no face is left, or more than `max_faces`.
    """
    count = len(faces)
    if not np.isfinite(vertices).all():
        raise ValueError("it has vertices that are not finite: repair it")
    vertices, faces = _merged(vertices, faces)
    if len(faces) > config.max_faces:
        vertices, faces = _reduced(vertices, faces, config)
    if not len(faces):
        raise ValueError(f"none of its {count} faces has an area at {BINS} bins per axis")
    ordered, faces = canonical(vertices, faces)
    return ordered.astype(np.float32), faces


class TooManyFaces(ValueError):
    """More than `max_faces`: the number of faces, and the limit in words."""

    def __str__(self) -> str:
        return "it has {} faces, {}: {}".format(*self.args, INCLUDE)


def _reduced(vertices: Floats, faces: Ints, config: MeshDataConfig) -> tuple[Floats, Ints]:
    limit = f"more than max_faces = {config.max_faces}"
    if config.too_large == "skip":
        raise TooManyFaces(len(faces), limit)
    if faces.shape[1] != 3:
        raise ValueError(f"it has {len(faces)} quads, {limit}: only triangles can be simplified")
    return _merged(*simplify(vertices, faces, config.max_faces))


def _merged(vertices: Floats, faces: Ints) -> tuple[Floats, Ints]:
    """Normalise by the vertices in use, and merge by bins.

    Repeats if dropping degenerate faces has changed the bounding box.
    """
    points = np.asarray(vertices, np.float64)
    faces = faces[has_area(points, faces)]
    while True:
        used, renamed = numbered(faces, len(points))
        if not len(used):
            return points, faces
        corners = points[used]
        merged, moved, whole = merge(normalised(corners).astype(np.float32), renamed)
        change = _bounds(corners) - _bounds(corners[numbered(renamed[whole], len(used))[0]])
        if not len(whole) or np.abs(change).max() <= np.ptp(corners, axis=0).max() / BINS:
            return merged, moved[whole]
        faces = faces[whole]


def _bounds(points: Floats) -> Floats:
    """Bounding box: (2, 3)."""
    return np.stack([points.min(0, initial=np.inf), points.max(0, initial=-np.inf)])


def augmented(
    vertices: npt.NDArray[np.float32], key: Key | None, config: MeshDataConfig
) -> npt.NDArray[np.float32]:
    """Random scale per axis, rotation about the vertical and shift, drawn from the key."""
    if key is None or not (config.scale or config.rotation or config.shift):
        return vertices
    rng = key.random("augment")
    scale = [rng.uniform(1 - config.scale, 1 + config.scale) for _ in range(3)]
    angle = radians(rng.uniform(-config.rotation, config.rotation))
    shift = [rng.uniform(-config.shift, config.shift) for _ in range(3)]
    rotation = np.array([[cos(angle), sin(angle), 0], [-sin(angle), cos(angle), 0], [0, 0, 1]])
    transformed = normalised((vertices.astype(np.float64) * scale) @ rotation) + shift
    return transformed.astype(np.float32)


def _sample(mesh: Mesh, key: Key | None, config: MeshDataConfig, text: str) -> dict[str, Any]:
    vertices, faces = mesh
    moved = augmented(vertices, key, config)
    if moved is not vertices:
        # The bins change: vertices may coincide, and the order may differ.
        vertices, faces = canonical(*weld(moved, faces))
    return {
        "vertices": torch.from_numpy(np.ascontiguousarray(vertices)),
        "faces": torch.from_numpy(np.ascontiguousarray(faces)),
        "text": text,
    }


# -- folders --------------------------------------------------------------------------------


def _settings(config: MeshDataConfig) -> str:
    """Settings that determine a prepared mesh and its variants."""
    limit = (config.max_faces, config.too_large, config.upright)
    return repr((PREPARED, BINS, limit, config.scale, config.shift, config.rotation))


class MeshFolder(InFolder):
    """Mesh files, with captions from the metadata or the subfolder names."""

    Config = MeshDataConfig

    suffixes, unread, what = readable(), unread(), "meshes"
    companions = pixels.SUFFIXES  # textures
    unread_remedy = f"for .dae and .3mf: {scenes.EXTRA}" if ".dae" in unread else ""

    def __init__(self, folder: Path | str, config: MeshDataConfig, split: Split, seed: int) -> None:
        super().__init__(folder, config, split, seed)
        self._prepared = SharedRows([1 + 12 * config.max_faces] * len(self), np.int32)
        """Meshes of earlier epochs: to prepare one takes longer than all that follows."""

    def range_settings(self) -> object:
        config = self.config
        limits = (config.max_faces, config.too_large, config.max_file_faces, config.max_bytes)
        return (PREPARED, BINS, *limits)

    def examine(self, path: Path) -> float:
        """Count the faces; a file with too many is prepared, because that may remove faces."""
        config = self.config
        limits = {"max_bytes": config.max_bytes, "max_faces": config.max_file_faces}
        count = count_faces(path, config.max_faces, **limits)
        if count > config.max_faces and config.too_large == "skip":
            _read(path, config)
        return 0.0

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The mesh, augmented by the key, and its caption."""
        return _sample(self._mesh(index), key, self.config, self.text(index))

    def _mesh(self, index: int) -> Mesh:
        row = self._prepared.get(index)
        if row is not None:
            corners, faces = row[1 : 1 + 3 * row[0]], row[1 + 3 * row[0] :]
            points = corners.view(np.float32).reshape(-1, 3).copy()
            return points, faces.reshape(-1, 3).astype(np.int64)
        vertices, faces = _read(self.path(index), self.config)
        numbers = [[len(vertices)], vertices.reshape(-1).view(np.int32), faces.reshape(-1)]
        self._prepared.put(index, np.concatenate(numbers).astype(np.int32))
        return vertices, faces

    def text(self, index: int) -> str:
        return super().text(index) or folder_caption(self.name(index))

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """A fixed augmentation, the same in every epoch; 0 is the original mesh."""
        return self.keyed(index, VariantKey(self.name(index), number) if number else None)

    def digest(self, index: int) -> str:
        """Digest of the file and of its preparation."""
        name, path = self.name(index), self.path(index)
        try:
            with path.open("rb") as file:
                content = file_digest(file, lambda: blake2b(digest_size=16)).digest()
        except OSError as error:
            raise BadFile(path, f"cannot be read ({error.strerror})", "check the path") from error
        settings = _settings(self.config).encode()
        return blake2b(content + settings + fsencode(name), digest_size=16).hexdigest()


def _read(path: Path, config: MeshDataConfig) -> Mesh:
    vertices, faces = read_mesh(
        path,
        max_bytes=config.max_bytes,
        max_faces=config.max_file_faces,
        upright=config.upright,
    )
    try:
        return prepare(vertices, faces, config)
    except TooManyFaces as error:
        count, limit = error.args
        raise OutOfRange(path, f"it has {count} faces", limit, INCLUDE, count) from error
    except ValueError as error:
        reason, _, remedy = str(error).partition(": ")
        raise BadFile(path, reason, remedy) from error


def check(
    folder: Path | str,
    config: MeshDataConfig = MeshDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, Problem | None]]:
    """Read and prepare each mesh of a folder; yield its path, and an error message or None."""
    every = replace(config, valid_limit=maxsize, exclude_held_out=False)
    return check_files(MeshFolder, folder, every, lambda _: lambda path: _read(path, config))


# -- built-in data --------------------------------------------------------------------------


class BuiltinMeshes(Builtin):
    """Procedural furniture and solids with captions."""

    what = "mesh"

    def shape(self, index: int) -> shapes.Shape:
        most = min(self.config.max_faces, shapes.MAX_FACES)
        return shapes.compose(self.number(index), self.seed, most)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The mesh, augmented by the key, and its caption."""
        shape = self.shape(index)
        return _sample(shapes.build(shape), key, self.config, shape.caption)

    def text(self, index: int) -> str:
        return self.shape(index).caption

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """A fixed augmentation, the same in every epoch; 0 is the original mesh."""
        return self.keyed(index, VariantKey(self.name(index), number) if number else None)

    def digest(self, index: int) -> str:
        """Digest of the shape and of its preparation."""
        parts = (shapes.VERSION, self.seed, self.name(index), _settings(self.config))
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


# -- collation ------------------------------------------------------------------------------


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def capacity(lengths: Sequence[int], batch_size: int, window: int = 1) -> int:
    """Rows for a batch of meshes: the mean total and four standard deviations, so that hardly any
    batch needs more and compiled models see one shape. `window` is that of a plan of even batches,
    whose totals vary less."""
    deviation = float(np.std(lengths)) * sqrt(batch_size / window)
    rows = batch_size * float(np.mean(lengths)) + 4 * deviation
    return round_up(ceil(min(rows, batch_size * max(lengths))), 64)


def some_lengths(source: Source, seed: int) -> list[int]:
    """Faces of the first meshes in the order of training, without those that cannot be read."""
    lengths: list[int] = []
    for index in order_of(source, seed)(0).many(0, min(SAMPLED, len(source))):
        with suppress(*DAMAGE):
            lengths.append(len(source.keyed(index, None)["faces"]))
    return lengths


class Collate:
    """Pack meshes without padding between them, as `MeshAutoencoder.forward` takes them.

    vertices float32 (1, v, 3) padded with 0; faces (1, f, corners) and neighbours (1, f, 8) as rows
    of the batch, int32, padded with -1; lengths (b, 2), the faces and vertices of each mesh; text a
    list. v and f are multiples of `unit`, 1 where shapes may vary.
    """

    def __init__(self, max_faces: int, corners: int = 3, unit: int = 1, reach: int = 0) -> None:
        """With `reach`, batches also have ranks (1, f, corners), the `vertex_ranks`."""
        self.max_faces, self.corners, self.unit, self.reach = max_faces, corners, unit, reach

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        meshes = [self._checked(item) for item in items]
        lengths = torch.tensor([[len(polygons), len(points)] for points, polygons in meshes])
        most = len(items) * self.max_faces
        num_faces, num_vertices = (
            min(round_up(int(total), self.unit), limit)
            for total, limit in zip(lengths.sum(0), (most, most * self.corners))
        )
        vertices = torch.zeros(1, num_vertices, 3)
        torch.cat([points for points, _ in meshes], out=vertices[0, : int(lengths[:, 1].sum())])
        # One table of all faces: no vertex belongs to two meshes.
        rows = torch.cat([polygons for _, polygons in meshes])
        first = (lengths.cumsum(0) - lengths)[:, 1].repeat_interleave(lengths[:, 0])
        rows = torch.where(rows >= 0, rows + first[:, None], -1)
        batch = {"vertices": vertices, "faces": self._padded(rows, num_faces)}
        batch["neighbours"] = self._padded(face_neighbours(rows), num_faces)
        if self.reach:
            ranks = [vertex_ranks(polygons.numpy(), self.reach) for _, polygons in meshes]
            batch["ranks"] = self._padded(torch.from_numpy(np.concatenate(ranks)), num_faces)
        return {**batch, "lengths": lengths, "text": [str(item.get("text", "")) for item in items]}

    def _padded(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        """(f, n) as int32 (1, count, n), padded with -1."""
        padded = torch.full((1, count, rows.shape[1]), -1, dtype=torch.int32)
        padded[0, : len(rows)] = rows
        return padded

    def _checked(self, item: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        points = torch.as_tensor(item["vertices"], dtype=torch.float32)
        polygons = torch.as_tensor(item["faces"], dtype=torch.int64)
        if polygons.ndim != 2 or polygons.shape[1] != self.corners:
            want = f"(faces, {self.corners})"
            raise ValueError(f"`faces` has shape {tuple(polygons.shape)}, not {want}: set corners")
        if len(polygons) > self.max_faces:
            most = f"more than max_faces = {self.max_faces}"
            raise ValueError(f"`faces` holds {len(polygons)} faces, {most}: raise it")
        if len(points) > self.max_faces * self.corners:
            most = f"more than {self.max_faces} faces of {self.corners} corners can use"
            raise ValueError(f"`vertices` holds {len(points)}, {most}: drop those without a face")
        if len(polygons) and int(polygons.max()) >= len(points):
            raise ValueError(f"`faces` names vertex {int(polygons.max())} of {len(points)}")
        return points, polygons


def open_data(
    folder: Path | str | None, config: MeshDataConfig, split: Split, seed: int
) -> Encodable:
    """Dataset of a folder, or the built-in one if `folder` is None.

    The seed selects the validation meshes of a folder. Built-in meshes do not depend on it, so runs
    with different seeds share one validation set.
    """
    if folder is None:
        return BuiltinMeshes(config, split)
    return MeshFolder(folder, config, split, seed)


Folder = MeshFolder

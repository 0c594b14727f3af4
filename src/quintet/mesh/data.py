"""Meshes from a folder, and the built-in furniture and solids.

A sample is {"vertices": float32 (v, 3) between -1 and 1, "faces": int64 (f, k), "text": str}, in
canonical order. What is random about it is drawn from its key; without a key it is as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b, file_digest
from math import cos, radians, sin
from os import fsencode
from pathlib import Path
from random import Random
from sys import maxsize
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from quintet.media.errors import BadFile, printable
from quintet.media.meshes import SUFFIXES, read_mesh, simplify
from quintet.media.splits import (
    Builtin,
    InFolder,
    Key,
    Split,
    examined,
    examined_shards,
    find,
)
from quintet.mesh import shapes
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.geometry import (
    BINS,
    NEIGHBOURS,
    Floats,
    Ints,
    canonical,
    face_neighbours,
    has_area,
    merge,
    neighbours_from_edges,
    normalised,
    weld,
)

Mesh = tuple[npt.NDArray[np.float32], Ints]
PREPARED = 1
"""Goes up whenever a file would be prepared differently, so that codes of old ones are not used."""


class MeshData(Protocol):
    """What both kinds of data offer."""

    def __len__(self) -> int: ...
    def keyed(self, index: int, key: Key | None) -> dict[str, Any]: ...
    def name(self, index: int) -> str: ...
    def text(self, index: int) -> str: ...
    def digest(self, index: int) -> str: ...
    def variant(self, index: int, number: int) -> dict[str, Any]: ...


class _VariantKey:
    """Randomness that belongs to one numbered variant of one mesh, in every epoch and run."""

    def __init__(self, name: str, number: int) -> None:
        self._start = b"%d/" % number + fsencode(name) + b"/"

    def _seed(self, name: str) -> int:
        return int.from_bytes(blake2b(self._start + name.encode(), digest_size=8).digest(), "big")

    def random(self, name: str) -> Random:
        return Random(self._seed(name))

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng(self._seed(name))


# -- one mesh -------------------------------------------------------------------------------


def prepare(vertices: Floats, faces: Ints, config: MeshDataConfig) -> Mesh:
    """Normalised, merged in its bins, without degenerate and double faces, in canonical order.

    ValueError says why where no face is left, or more than `max_faces` are.
    """
    given = len(faces)
    if not np.isfinite(vertices).all():
        raise ValueError("it has vertices that are not finite numbers: repair it")
    vertices, faces = _merged(vertices, faces)
    if len(faces) > config.max_faces:
        vertices, faces = _fewer(vertices, faces, config)
    if not len(faces):
        raise ValueError(f"none of its {given} faces has an area at {BINS} steps per axis")
    ordered, faces = canonical(vertices, faces)
    return ordered.astype(np.float32), faces


def _fewer(vertices: Floats, faces: Ints, config: MeshDataConfig) -> tuple[Floats, Ints]:
    most = f"more than max_faces = {config.max_faces}"
    if config.too_large == "skip":
        raise ValueError(f"it has {len(faces)} faces, {most}: raise it, or too_large = 'simplify'")
    if faces.shape[1] != 3:
        raise ValueError(f"it has {len(faces)} quads, {most}: only triangles can be simplified")
    return _merged(*simplify(vertices, faces, config.max_faces))


def _merged(vertices: Floats, faces: Ints) -> tuple[Floats, Ints]:
    """Normalised by what has faces, and merged in its bins.

    Faces that vanish may have reached furthest; then what is left is normalised anew.
    """
    points = np.asarray(vertices, np.float64)
    faces = faces[has_area(points, faces)]
    while True:
        used, renamed = np.unique(faces, return_inverse=True)
        if not len(used):
            return points, faces
        placed = normalised(points[used]).astype(np.float32)
        merged, renamed, kept = merge(placed, renamed.reshape(faces.shape))
        lost = _reach(points, faces) - _reach(points, faces[kept])
        if not len(kept) or np.abs(lost).max() <= np.ptp(points[used], axis=0).max() / BINS:
            return merged, renamed[kept]
        faces = faces[kept]


def _reach(points: Floats, faces: Ints) -> Floats:
    """The lowest and the highest corner of the box around the faces."""
    corners = points[faces].reshape(-1, 3)
    return np.stack([corners.min(0, initial=np.inf), corners.max(0, initial=-np.inf)])


def augmented(
    vertices: npt.NDArray[np.float32], key: Key | None, config: MeshDataConfig
) -> npt.NDArray[np.float32]:
    """Stretched along each axis, turned about the vertical and moved, as the key has it."""
    if key is None or not (config.scale or config.turn or config.shift):
        return vertices
    draw = key.random("augment")
    stretch = [draw.uniform(1 - config.scale, 1 + config.scale) for _ in range(3)]
    angle = radians(draw.uniform(-config.turn, config.turn))
    move = [draw.uniform(-config.shift, config.shift) for _ in range(3)]
    turn = np.array([[cos(angle), sin(angle), 0], [-sin(angle), cos(angle), 0], [0, 0, 1]])
    placed = normalised((vertices.astype(np.float64) * stretch) @ turn) + move
    return placed.astype(np.float32)


def _sample(mesh: Mesh, key: Key | None, config: MeshDataConfig, text: str) -> dict[str, Any]:
    vertices, faces = mesh
    moved = augmented(vertices, key, config)
    if moved is not vertices:
        # The bins fall elsewhere now: vertices may meet, and the order may change.
        vertices, faces = canonical(*weld(moved, faces))
    return {
        "vertices": torch.from_numpy(np.ascontiguousarray(vertices)),
        "faces": torch.from_numpy(np.ascontiguousarray(faces)),
        "text": text,
    }


# -- folders --------------------------------------------------------------------------------


def _settings(config: MeshDataConfig) -> str:
    """What decides how a mesh and its variants come out."""
    limit = (config.max_faces, config.too_large, config.upright)
    return repr((PREPARED, BINS, limit, config.scale, config.shift, config.turn))


class MeshFolder(InFolder):
    """Meshes, with captions by the metadata or by the names of sub-folders."""

    suffixes, what = SUFFIXES, "meshes"

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The mesh, stretched, turned and moved by the key, and its caption."""
        mesh = _read(self.path(index), self.config)
        return _sample(mesh, key, self.config, self.text(index))

    def text(self, index: int) -> str:
        """The caption alone, without opening the mesh."""
        return super().text(index) or _by_folder(self.name(index))

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """The mesh as this variant of it looks, the same in every epoch; 0 is the mesh itself."""
        return self.keyed(index, _VariantKey(self.name(index), number) if number else None)

    def digest(self, index: int) -> str:
        """A name for what the mesh and its variants hold: the file, and how it is prepared."""
        name, path = self.name(index), self.path(index)
        try:
            with path.open("rb") as file:
                content = file_digest(file, lambda: blake2b(digest_size=16)).digest()
        except OSError as error:
            raise BadFile(path, f"cannot be read ({error.strerror})", "check the path") from error
        settings = _settings(self.config).encode()
        return blake2b(content + settings + fsencode(name), digest_size=16).hexdigest()


def _by_folder(name: str) -> str:
    """`all/office_chair/a.obj` is an "office chair"; a mesh in no sub-folder has no caption."""
    above = name.rpartition("/")[0].rpartition("/")[2]
    return printable(above).replace("_", " ").strip()


def _read(path: Path, config: MeshDataConfig) -> Mesh:
    vertices, faces = read_mesh(
        path,
        max_bytes=config.max_bytes,
        max_faces=config.max_file_faces,
        upright=config.upright,
    )
    try:
        return prepare(vertices, faces, config)
    except ValueError as error:
        reason, _, remedy = str(error).partition(": ")
        raise BadFile(path, reason, remedy) from error


def check(
    folder: Path | str,
    config: MeshDataConfig = MeshDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, str | None]]:
    """Each mesh of a folder, read and prepared in full, with what is wrong with it or None."""
    every = replace(config, valid_limit=maxsize)
    packed = examined_shards(folder, SUFFIXES, lambda split: MeshFolder(folder, every, split, 0))
    if packed is not None:
        yield from packed
        return
    yield from examined(find(Path(folder), SUFFIXES, "meshes"), lambda path: _read(path, config))


# -- built-in data --------------------------------------------------------------------------


class BuiltinMeshes(Builtin):
    """Procedural furniture and solids with captions."""

    what = "mesh"

    def shape(self, index: int) -> shapes.Shape:
        """What the mesh is."""
        most = min(self.config.max_faces, shapes.MAX_FACES)
        return shapes.compose(self.number(index), self.seed, most)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The mesh, stretched, turned and moved by the key, and its caption."""
        shape = self.shape(index)
        return _sample(shapes.build(shape), key, self.config, shape.caption)

    def text(self, index: int) -> str:
        """The caption alone."""
        return self.shape(index).caption

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """The mesh as this variant of it looks, the same in every epoch; 0 is the mesh itself."""
        return self.keyed(index, _VariantKey(self.name(index), number) if number else None)

    def digest(self, index: int) -> str:
        """A name for what the mesh and its variants hold."""
        parts = (shapes.VERSION, self.seed, self.name(index), _settings(self.config))
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


# -- batches --------------------------------------------------------------------------------


class Collate:
    """One batch, padded to the same size whatever is in it, so that compiled models stay compiled.

    vertices float32 (b, max_faces * corners, 3) padded with 0; faces (b, max_faces, corners) and
    neighbours (b, max_faces, 8) padded with -1; text a list. A sample may bring its own
    `face_edges` (e, 2); otherwise faces that share two vertices are neighbours.
    """

    def __init__(self, max_faces: int, corners: int = 3) -> None:
        self.max_faces = max_faces
        self.corners = corners

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        count, most = len(items), self.max_faces
        vertices = torch.zeros(count, most * self.corners, 3)
        faces = torch.full((count, most, self.corners), -1)
        neighbours = torch.full((count, most, NEIGHBOURS), -1)
        for row, item in enumerate(items):
            points, polygons = self._checked(item)
            vertices[row, : len(points)] = points
            faces[row, : len(polygons)] = polygons
            neighbours[row, : len(polygons)] = _neighbours(item, polygons)
        text = [str(item.get("text", "")) for item in items]
        return {"vertices": vertices, "faces": faces, "neighbours": neighbours, "text": text}

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


def _neighbours(item: Mapping[str, Any], faces: torch.Tensor) -> torch.Tensor:
    edges = item.get("face_edges")
    if edges is None:
        return face_neighbours(faces)
    return neighbours_from_edges(torch.as_tensor(edges), len(faces))


def open_data(
    folder: Path | str | None, config: MeshDataConfig, split: Split, seed: int
) -> MeshData:
    """The meshes of a folder, or the built-in ones where none is given.

    The seed chooses which of a folder's meshes are held out. The built-in meshes do not depend on
    it, so that runs with different seeds are measured on the same ones.
    """
    if folder is None:
        return BuiltinMeshes(config, split)
    return MeshFolder(folder, config, split, seed)

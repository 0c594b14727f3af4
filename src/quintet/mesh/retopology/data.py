"""Scans made from clean meshes, with the codes of the meshes; or a user's own pairs.

clean mesh ─┬─ scan, or a file of the user ─> points ─┐ mirrored, scaled, turned, and put into
            └─ its vertices and faces ────────────────┴─ the box of the points
                                 ─> points (p, 6) in -1..1, and a window of the codes (f, 9)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import cos, radians, sin
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.media.meshes import points as point_files
from quintet.media.meshes.files import read_mesh
from quintet.mesh.data import open_data
from quintet.mesh.geometry import EXTENT, Floats, numbered
from quintet.mesh.retopology.codes import codes_of
from quintet.mesh.retopology.config import RetopologyRecipe
from quintet.mesh.retopology.scan_config import ScanConfig
from quintet.mesh.retopology.scans import scan
from quintet.mesh.transformer.data import pack
from quintet.shared.code_cache import OfSource, VariantKey

CLEAN_SCANS = ScanConfig(remesh=0, holes=0, noise=0)
"""Validation meshes have clean samples, from which the original can be told exactly."""
CLEAN, DENSE = "clean", "dense"
"""Folders of pairs: files of the same name, without the suffix."""


class Scans(OfSource):
    """Samples of `source`, clean meshes, as {"points" (p, 6), "codes" (f, 9), "faces", "first"}.

    A long mesh is a window of `max_faces` faces from `first` on, out of `faces`.
    """

    def __init__(self, source: Any, recipe: RetopologyRecipe, dense: Path | None = None) -> None:
        self.source, self.recipe = source, recipe
        self.dense = None if dense is None else dense_files(dense)

    def text(self, index: int) -> str:
        return self.source.text(index)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        item, model = self.source.keyed(index, key), self.recipe.model
        vertices, faces = item["vertices"].numpy().astype(np.float64), item["faces"].numpy()
        rng = (key or VariantKey(self.name(index), 0)).numpy("scan")
        if self.dense is not None:
            points = self._paired(index, self.dense, rng)
        else:
            scans = self.recipe.scans if key is not None else CLEAN_SCANS
            points = scan(vertices, faces, model.points, rng, scans)
        if key is not None:
            points, vertices, faces = self._augmented(points, vertices, faces, key)
        points, vertices = boxed(points, vertices)
        if key is not None and (shift := self.recipe.meshes.shift):
            offset = key.numpy("shift").uniform(-shift, shift, 3)
            points[:, :3] += offset.astype(np.float32)
            vertices = vertices + offset
        codes = codes_of(vertices, faces, model.bins)
        if not len(codes):
            raise ValueError(f"{self.name(index)} has no face with an area at {model.bins} bins")
        # The last window has the end of the mesh, and so one face less than others.
        most = len(codes) - model.max_faces + 1
        first = key.random("window").randint(0, most) if key is not None and most > 1 else 0
        window = codes[first : first + model.max_faces].astype(np.int32)
        return {
            "points": torch.from_numpy(points),
            "codes": torch.from_numpy(window),
            "faces": len(codes),
            "first": first,
            "text": item["text"],
        }

    def _augmented(
        self, points: Floats, vertices: Floats, faces: Any, key: Key
    ) -> tuple[Floats, Floats, Any]:
        """Mirrored, scaled along each axis and turned about the vertical."""
        rng, config = key.random("augment"), self.recipe.meshes
        mirrored = self.recipe.mirror and rng.random() < 0.5
        scale = [rng.uniform(1 - config.scale, 1 + config.scale) for _ in range(3)]
        angle = radians(rng.uniform(-config.rotation, config.rotation))
        turn = np.array([[cos(angle), sin(angle), 0], [-sin(angle), cos(angle), 0], [0, 0, 1]])
        matrix = np.diag([-scale[0] if mirrored else scale[0], *scale[1:]]) @ turn
        normals = points[:, 3:] @ np.linalg.inv(matrix).T
        normals /= np.linalg.norm(normals, axis=1, keepdims=True).clip(1e-12)
        moved = np.concatenate((points[:, :3] @ matrix, normals), 1)
        return moved, vertices @ matrix, faces[:, ::-1] if mirrored else faces

    def _paired(self, index: int, files: Mapping[str, Path], rng: np.random.Generator) -> Floats:
        """Points of the user's file, moved as its clean mesh was."""
        name = self.name(index)
        path = files.get(str(Path(name).with_suffix("")))
        if path is None:
            raise ValueError(f"{name} has no file of its name in {DENSE}: add one")
        points = point_files.read_points(path, self.recipe.model.points, rng).astype(np.float64)
        vertices, faces = read_mesh(self.source.path(index), upright=self.recipe.meshes.upright)
        used = vertices[numbered(faces, len(vertices))[0]]
        low, high = used.min(0), used.max(0)
        half = float((high - low).max()) / 2 or 1.0
        points[:, :3] = (points[:, :3] - (low + high) / 2) * (EXTENT / half)
        missing = self.recipe.model.points - len(points)
        return np.concatenate((points, points[rng.integers(len(points), size=max(0, missing))]))


def dense_files(folder: Path) -> dict[str, Path]:
    """Files by their path in the folder, without the suffix."""
    suffixes = point_files.point_suffixes()
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    return {str(path.relative_to(folder).with_suffix("")): path for path in paths}


def boxed(points: Floats, vertices: Floats) -> tuple[Floats, Floats]:
    """Points (p, 6) and vertices, moved and scaled so that the points fill -EXTENT..EXTENT."""
    low, high = points[:, :3].min(0), points[:, :3].max(0)
    scale = EXTENT / (float((high - low).max()) / 2 or 1.0)
    centre = (low + high) / 2
    places = (points[:, :3] - centre) * scale
    moved = (vertices - centre) * scale
    return np.concatenate((places, points[:, 3:]), 1).astype(np.float32), moved


def open_scans(recipe: RetopologyRecipe, split: Any) -> Scans:
    """Scans of a folder of clean meshes, of a folder of pairs, or of built-in meshes."""
    # Mesh and points are augmented together.
    meshes = replace(recipe.meshes, scale=0.0, rotation=0.0, shift=0.0)
    folder = None if recipe.data is None else Path(recipe.data)
    if folder is None or not (folder / CLEAN).is_dir():
        return Scans(open_data(folder, meshes, split, recipe.seed), recipe)
    if not (folder / DENSE).is_dir():
        raise RunError(f"{folder} has a folder {CLEAN}, but none named {DENSE}: add the scans")
    clean = open_data(folder / CLEAN, meshes, split, recipe.seed)
    return Scans(clean, recipe, folder / DENSE)


def collate(items: Sequence[Mapping[str, Any]], max_faces: int, unit: int) -> dict[str, Any]:
    return {
        **pack([item["codes"] for item in items], max_faces, unit),
        "points": torch.stack([item["points"] for item in items]),
        "faces": torch.tensor([item["faces"] for item in items]),
        "first": torch.tensor([item["first"] for item in items]),
        "text": [item["text"] for item in items],
    }

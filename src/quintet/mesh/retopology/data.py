"""Scans made from clean meshes, with the codes of the meshes; or a user's own pairs.

    clean mesh ─ mirrored, scaled, turned ─┬─ scan ─> points (p, 6) in -1..1
                                           └─ the same box ─ codes (f, 9) ─> a window of them
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from quintet.engine.keys import Key
from quintet.mesh.data import open_data
from quintet.mesh.geometry import EXTENT, Floats
from quintet.mesh.retopology.codes import codes_of, window
from quintet.mesh.retopology.config import RetopologyRecipe
from quintet.mesh.retopology.scans import scan
from quintet.mesh.transformer.data import pack
from quintet.shared.code_cache import OfSource, VariantKey


class Scans(OfSource):
    """Samples of `source`, clean meshes, as {"points" (p, 6), "codes" (f, 9), "faces", "first"}.

    A long mesh is a window of `max_faces` faces from `first` on, out of `faces`.
    """

    def __init__(self, source: Any, recipe: RetopologyRecipe) -> None:
        self.source, self.recipe = source, recipe

    def text(self, index: int) -> str:
        return self.source.text(index)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        item, model = self.source.keyed(index, key), self.recipe.model
        vertices, faces = item["vertices"].numpy().astype(np.float64), item["faces"].numpy()
        if key is not None and self.recipe.mirror and key.random("mirror").random() < 0.5:
            vertices, faces = vertices * [-1, 1, 1], faces[:, ::-1]
        own = key or VariantKey(self.name(index), 0)
        points = scan(vertices, faces, model.points, own.numpy("scan"), self.recipe.scans)
        points, fitted = boxed(points, vertices)
        codes = codes_of(fitted, faces, model.bins)
        if not len(codes):
            raise ValueError(f"{self.name(index)} has no face with an area at {model.bins} bins")
        # The last window of a mesh has its end, one face before the window's.
        most = max(0, len(codes) - model.max_faces + 1)
        whole = len(codes) <= model.max_faces
        first = 0 if whole or key is None else key.random("window").randint(0, most)
        return {
            "points": torch.from_numpy(points),
            "codes": window(codes, first, model.max_faces),
            "faces": len(codes),
            "first": first,
            "text": item["text"],
        }


def boxed(points: Floats, vertices: Floats) -> tuple[Floats, Floats]:
    """Points (p, 6) and vertices, moved and scaled so that the points fill -EXTENT..EXTENT."""
    low, high = points[:, :3].min(0), points[:, :3].max(0)
    scale = EXTENT / (float((high - low).max()) / 2 or 1.0)
    centre = (low + high) / 2
    places = (points[:, :3] - centre) * scale
    moved = (vertices - centre) * scale
    return np.concatenate((places, points[:, 3:]), 1).astype(np.float32), moved


def open_scans(recipe: RetopologyRecipe, split: Any) -> Scans:
    return Scans(open_data(recipe.data, recipe.meshes, split, recipe.seed), recipe)


def collate(items: Sequence[Mapping[str, Any]], max_faces: int, unit: int) -> dict[str, Any]:
    return {
        **pack([item["codes"] for item in items], max_faces, unit),
        "points": torch.stack([item["points"] for item in items]),
        "faces": torch.tensor([item["faces"] for item in items]),
        "first": torch.tensor([item["first"] for item in items]),
        "text": [item["text"] for item in items],
    }

"""A user's own data set of meshes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.trainer import BaseTrainer
from quintet.mesh.data import open_data
from quintet.mesh.geometry import canonical
from quintet.shared.own_data import OwnData, as_tensor, kind_of


class OwnMeshes(OwnData):
    """Items hold vertices (v, 3) in -1..1, faces (f, 3 or 4), and optionally a caption. Adjacency
    is derived from the canonical order of the faces; the user's own would not match it. A mesh of
    more than `max_faces` faces counts as damaged; `remedy` is the setting that includes it."""

    fields = {"vertices": "vertices", "faces": "faces", "text": "text", "texts": "text"}
    ignored = frozenset({"face_edges", "neighbours", "text_embeds"})
    items = "items must be dicts with 'vertices' and 'faces', or tuples with data_kwargs"

    def __init__(self, dataset: Any, names: Sequence[str], max_faces: int, remedy: str):
        super().__init__(dataset, names)
        self.max_faces, self.remedy = max_faces, remedy

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """Item `index` as drawn for the epoch `number`: the data set's own augmentation."""
        return self.keyed(index, Key(0, number, index) if number else None)

    def text(self, index: int) -> str:
        return self.keyed(index, None)["text"]

    def digest(self, index: int) -> str:
        item = self.keyed(index, None)
        digest = hashlib.blake2b(digest_size=16)
        for name in ("vertices", "faces"):
            digest.update(np.ascontiguousarray(item[name].numpy()).tobytes() + b"\0")
        return digest.hexdigest()

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        names = ("vertices", "faces", "text")
        if len(values) > 2 and _is_edges(values[2]):  # in the order of meshgpt-pytorch
            names = ("vertices", "faces", "face_edges", "text")
        if not 2 <= len(values) <= len(names):
            kind = type(values[0]).__name__ if len(values) == 1 else f"a tuple of {len(values)}"
            raise TypeError(f"{where} is {kind}; {self.items}")
        return [pair for pair in zip(names, values) if pair[0] != "face_edges"]

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        vertices, faces = (_tensor(fields.get(name), name) for name in ("vertices", "faces"))
        faces = _checked(vertices, faces, where)
        if len(faces) > self.max_faces:
            raise ValueError(
                f"{where} has {len(faces)} faces, more than max_faces = {self.max_faces}: "
                f"{self.remedy}"
            )
        ordered = canonical(vertices.float().numpy(), faces.numpy())
        return {
            "vertices": torch.from_numpy(np.ascontiguousarray(ordered[0])),
            "faces": torch.from_numpy(np.ascontiguousarray(ordered[1])),
            "text": _caption(fields.get("text"), where),
        }


class CaptionedMeshes(OwnMeshes):
    """Meshes whose captions are learned: embeddings in their place are an error."""

    def route(self, item: Any, where: str) -> dict[str, Any]:
        if "text_embeds" in (item if isinstance(item, Mapping) else self.names):
            raise TypeError(
                f"{where} has text_embeds; give the captions as texts, and build the model with "
                "text='frozen' and text_path= for a pretrained encoder, whose embeddings are cached"
            )
        return super().route(item, where)


def _is_edges(value: Any) -> bool:
    """Whether this is the adjacency of a mesh: integers (e, 2)."""
    value = as_tensor(value)
    if not isinstance(value, Tensor) or value.is_floating_point():
        return False
    return value.ndim == 2 and value.shape[1] == 2


def _caption(value: Any, where: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise TypeError(
        f"the caption of {where} is {kind_of(value)}, not a str; name the fields by data_kwargs, "
        "for example ['vertices', 'faces', 'face_edges', 'texts']"
    )


def _checked(vertices: Tensor, faces: Tensor, name: str) -> Tensor:
    """The faces that are not padding; RunError or TypeError where this is no mesh."""
    if vertices.ndim != 2 or faces.ndim != 2 or vertices.shape[1] != 3:
        raise TypeError(
            f"{name} has vertices {tuple(vertices.shape)} and faces {tuple(faces.shape)}; "
            "give (v, 3) and (f, 3 or 4)"
        )
    faces = faces[(faces >= 0).all(1)]
    if not len(faces):
        raise RunError(f"{name} has no faces")
    most, count = int(faces.max()), len(vertices)
    if most >= count:
        raise RunError(f"{name} has a face with vertex {most}, but only {count} vertices")
    reach = vertices.abs().max().item()
    if not reach <= 1 + 1e-3:  # NaN is not
        raise RunError(
            f"vertices of {name} reach {reach:.3g}, but the model takes -1 to 1: "
            "centre each mesh and divide it by half its longest side"
        )
    return faces


def _tensor(value: Any, name: str) -> Tensor:
    value = as_tensor(value)
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor or an array, not {type(value).__name__}")
    if name == "vertices":
        return value.detach()
    if value.is_floating_point():
        raise TypeError("faces must be whole numbers, the numbers of vertices, not fractions")
    return value.long()


class MeshTrainer(BaseTrainer[Any]):
    names: Sequence[str] = ()
    meshes: type[OwnMeshes] = OwnMeshes

    def adapt(self, dataset: Any, recipe: Any) -> OwnMeshes:
        limit = recipe.meshes.max_faces
        of_model = getattr(recipe.model, "max_faces", None) == limit
        remedy = f"raise max_faces{' of the MeshTransformer' if of_model else ''}"
        return self.meshes(dataset, self.names or (), limit, remedy)

    def open(self, recipe: Any) -> Any:
        return open_data(recipe.data, recipe.meshes, "train", recipe.seed)

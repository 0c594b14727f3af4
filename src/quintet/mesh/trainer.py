"""MeshAutoencoderTrainer and MeshTransformerTrainer: the mesh room for Python users."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.config import resolved
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.stream import name_of, read_sample
from quintet.engine.trainer import BaseTrainer, Keywords, modern, shared_keywords, split
from quintet.mesh.autoencoder import MeshAutoencoder
from quintet.mesh.autoencoder_task import AutoencoderTask
from quintet.mesh.config import (
    MeshAutoencoderRecipe,
    MeshDataConfig,
    MeshTransformerRecipe,
    WritingConfig,
)
from quintet.mesh.data import open_data
from quintet.mesh.geometry import canonical
from quintet.mesh.transformer import MeshTransformer
from quintet.mesh.transformer_task import TransformerTask

NAMES = {"vertices": "vertices", "faces": "faces", "text": "text", "texts": "text"}
IGNORED = frozenset({"face_edges", "neighbours"})
"""Derived anew: an order of faces that is made canonical makes them wrong."""


class AsMeshes:
    """A data set of the user's: dicts, or tuples with names (today's `data_kwargs`).

    Items hold vertices (v, 3) in -1..1, faces (f, 3 or 4), and a text where there is one.
    """

    def __init__(self, source: Any, names: Sequence[str] = ()):
        self.source, self.names = source, tuple(names)

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return name_of(self.source, index)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        return self._routed(read_sample(self.source, index, key), index)

    def variant(self, index: int, number: int) -> dict[str, Any]:
        """Item `index` as drawn for the epoch `number`, so that augmentation has its turn."""
        return self.keyed(index, Key(0, number, index) if number else None)

    def text(self, index: int) -> str:
        return self.keyed(index, None)["text"]

    def digest(self, index: int) -> str:
        item = self.keyed(index, None)
        found = hashlib.blake2b(digest_size=16)
        for name in ("vertices", "faces"):
            found.update(np.ascontiguousarray(item[name].numpy()).tobytes() + b"\0")
        return found.hexdigest()

    def _routed(self, item: Any, index: int) -> dict[str, Any]:
        if isinstance(item, (tuple, list)):
            names = self.names or ("vertices", "faces", "text")[: len(item)]
            if len(names) != len(item):
                raise TypeError(f"data_kwargs names {len(names)} fields, the items {len(item)}")
            item = dict(zip(names, item))
        if not isinstance(item, Mapping):
            raise TypeError(
                f"sample {index} is {type(item).__name__}; items must be dicts with 'vertices' and "
                "'faces', or tuples with data_kwargs"
            )
        unknown = sorted(set(item) - set(NAMES) - IGNORED)
        if unknown:
            raise TypeError(f"sample {index} has {unknown[0]!r}; known: {', '.join(NAMES)}")
        found = {NAMES[name]: value for name, value in item.items() if name in NAMES}
        vertices, faces = (_tensor(found.get(name), name) for name in ("vertices", "faces"))
        faces = _checked(vertices, faces, f"sample {index}")
        ordered = canonical(vertices.float().numpy(), faces.numpy())
        text = found.get("text")
        return {
            "vertices": torch.from_numpy(np.ascontiguousarray(ordered[0])),
            "faces": torch.from_numpy(np.ascontiguousarray(ordered[1])),
            "text": "" if text is None else str(text),
        }


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
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor or an array, not {type(value).__name__}")
    if name == "vertices":
        return value.detach()
    if value.is_floating_point():
        raise TypeError("faces must be whole numbers, the numbers of vertices, not fractions")
    return value.long()


class _MeshTrainer(BaseTrainer):
    """What the two have in common: where meshes come from."""

    def _sources(
        self,
        folder: str | Path | None,
        dataset: Any,
        names: Sequence[str],
        meshes: MeshDataConfig,
        shared: Keywords,
    ) -> tuple[str | None, int]:
        """The place of the data, and its size; `self.sets` holds what Python gave."""
        if folder is not None and dataset is not None:
            raise RunError("give folder or dataset, and not both")
        if shared.val_dataset is not None and dataset is None:
            raise RunError("val_dataset goes with dataset; a folder holds out its valid_frac")
        self.sets: dict[str, Any] | None = None
        if dataset is None:
            place = resolved(folder)
            return place, len(open_data(place, meshes, "train", shared.seed))
        names = tuple(names) or tuple(getattr(dataset, "data_kwargs", ()))
        sides = {"train": dataset, "valid": shared.val_dataset}
        if shared.val_dataset is None:
            sides = split(dataset, shared.valid_frac, shared.seed)
        self.sets = {
            n: None if side is None else AsMeshes(side, names) for n, side in sides.items()
        }
        return "python:dataset", len(self.sets["train"])


class MeshAutoencoderTrainer(_MeshTrainer):
    """Train a MeshAutoencoder on a folder of 3-D files, on a data set, or on built-in shapes.

        model = MeshAutoencoder(dim=256)
        MeshAutoencoderTrainer(model, folder="chairs", max_faces=800, num_train_steps=5000).train()

    Beside what every trainer takes: `max_faces`, `meshes` (all settings of the data) and
    `data_kwargs`, the names of a data set's fields where its items are tuples.
    """

    name = "mesh/autoencoder"
    main = "autoencoder"

    def __init__(
        self,
        model: MeshAutoencoder,
        dataset: Any = None,
        *,
        folder: str | Path | None = None,
        max_faces: int = 800,
        meshes: MeshDataConfig | None = None,
        data_kwargs: Sequence[str] = (),
        **keywords: Any,
    ):
        shared = Keywords(**modern(keywords, shared_keywords()))
        meshes = meshes or MeshDataConfig(max_faces=max_faces, valid_fraction=shared.valid_frac)
        place, size = self._sources(folder, dataset, data_kwargs, meshes, shared)
        recipe = shared.recipe(
            size,
            MeshAutoencoderRecipe,
            model=model.config,
            meshes=meshes,
            autoencoder=shared.optimiser(),
            data=place,
        )
        super().__init__(model, shared, recipe)

    def task(self, recipe: MeshAutoencoderRecipe) -> AutoencoderTask:
        return AutoencoderTask(recipe, self._model(), self.sets)

    def tokenize(self, vertices: Tensor, faces: Tensor) -> Tensor:
        """Codes (b, f, corners x depth) of meshes, by the averaged weights."""
        model = self._averaged()
        device = next(model.parameters()).device
        return model.tokenize(vertices.to(device), faces.to(device))

    def _averaged(self) -> MeshAutoencoder:
        self.averaged_model()
        return self._model()

    def _model(self) -> MeshAutoencoder:
        assert isinstance(self.model, MeshAutoencoder)
        return self.model


class MeshTransformerTrainer(_MeshTrainer):
    """Train a MeshTransformer around its trained autoencoder; codes are computed once and kept.

        model = MeshTransformer(autoencoder, dim=512)
        trainer = MeshTransformerTrainer(model, folder="chairs", num_train_steps=20_000)
        trainer.train()
        meshes = trainer.generate(["a table with three legs"], cond_scale=2.0)

    Beside what every trainer takes: `max_faces`, `meshes`, `data_kwargs`, `variants` (fixed
    augmentations of each mesh), `text_drop` and `writing` (what is written at evaluations).
    """

    name = "mesh/transformer"
    main = "transformer"

    def __init__(
        self,
        model: MeshTransformer,
        dataset: Any = None,
        *,
        folder: str | Path | None = None,
        meshes: MeshDataConfig | None = None,
        data_kwargs: Sequence[str] = (),
        variants: int = 1,
        text_drop: float = 0.1,
        writing: WritingConfig | None = None,
        **keywords: Any,
    ):
        if model.autoencoder is None:
            raise RunError("the transformer learns the codes of an autoencoder: pass it to it")
        shared = Keywords(**modern(keywords, shared_keywords()))
        longest = model.config.max_faces
        meshes = meshes or MeshDataConfig(max_faces=longest, valid_fraction=shared.valid_frac)
        if meshes.max_faces > longest:
            raise RunError(
                f"meshes.max_faces is {meshes.max_faces}, but the model's max_faces is {longest}: "
                "raise the model's, or lower that of the data"
            )
        place, size = self._sources(folder, dataset, data_kwargs, meshes, shared)
        recipe = shared.recipe(
            size,
            MeshTransformerRecipe,
            autoencoder="python:autoencoder",
            model=model.config,
            meshes=meshes,
            variants=variants,
            text_drop=text_drop,
            writing=writing or WritingConfig(),
            transformer=shared.optimiser(),
            data=place,
        )
        super().__init__(model, shared, recipe)

    def stages(self) -> dict[str, Any]:
        return {"autoencoder": self._model().autoencoder}

    def task(self, recipe: MeshTransformerRecipe) -> TransformerTask:
        return TransformerTask(recipe, self._model(), self.sets)

    def generate(self, texts: Sequence[str] | None = None, **keywords: Any) -> Any:
        """New meshes by the averaged weights; keywords are those of MeshTransformer.generate."""
        self.averaged_model()
        return self._model().generate(texts, **keywords)

    def _model(self) -> MeshTransformer:
        assert isinstance(self.model, MeshTransformer)
        return self.model

"""Outputs of meshes: reconstructions of an autoencoder, or what a transformer generates from
held-out captions."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from quintet.engine.data.source import Source
from quintet.engine.errors import RunError
from quintet.engine.evaluate import ConcatData
from quintet.engine.task import Batch
from quintet.media.meshes.files import Mesh
from quintet.mesh.autoencoder.task import AutoencoderTask
from quintet.mesh.exhibits import Arrays
from quintet.mesh.geometry import discretise, undiscretise
from quintet.mesh.sample import through_codes
from quintet.mesh.transformer.task import TransformerTask
from quintet.shared.outputs import Group, Outputs
from quintet.shared.sampling import readable


def mesh_of(item: Mapping[str, Any]) -> Mesh:
    return Mesh(item["vertices"].numpy(), item["faces"].numpy())


class MeshOutputs(Outputs):
    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if task.config.corners != 3:
            raise RunError("judges take triangles, and this run was trained on quads")

    def preparation(self) -> dict[str, str]:
        config = self.task.recipe.meshes
        large = {"skip": "left out", "simplify": "simplified"}[config.too_large]
        return {
            "faces": f"at most {config.max_faces}, larger meshes {large}",
            "empty": "an output without a surface is one triangle",
        }


class Reconstructions(MeshOutputs):
    """Each mesh from its own codes."""

    task: AutoencoderTask
    compares = "pairs"

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        originals = [mesh_of(item) for item in items]
        model, bins = self.nets["autoencoder"], self.task.config.bins
        made = [Mesh(*through_codes(model, mesh)) for mesh in originals]
        # No autoencoder of these bins can be better.
        rounded = [
            Mesh(undiscretise(discretise(vertices, bins), bins).astype(np.float64), faces)
            for vertices, faces in originals
        ]
        return Group(originals, made, {"rounded_to_bins": rounded})


class Generated(MeshOutputs):
    """A mesh for each held-out caption, and beside them as many training meshes."""

    task: TransformerTask
    compares = "sets"
    size = 64

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.limit = task.recipe.generation.count or None

    def open(self, nets: Mapping[str, Any], source: Source) -> Source:
        """The meshes behind the codes."""
        parts = [s for split in ("train", "valid") if (s := self.task.codes[split]) is not None]
        whole = isinstance(source, ConcatData)
        meshes = ConcatData([s.source for s in parts]) if whole else parts[-1].source
        # Of a folder to evaluate on, nothing was trained on.
        train = None if whole else self.task.codes["train"]
        self.training = iter(()) if train is None else readable(train.source, len(train))
        return super().open(nets, meshes)

    def collate(self, items: list[Any]) -> Any:
        return {"text": [item["text"] for item in items]}

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        _, made = self.task.generate(batch.data["text"], seed=batch.ids[0])
        training = [mesh_of(item) for _, item in islice(self.training, len(items))]
        return Group([mesh_of(i) for i in items], [*map(_mesh, made)], {"training": training})


def _mesh(arrays: Arrays) -> Mesh:
    return Mesh(*arrays)


def outputs(task: Any) -> MeshOutputs:
    return Reconstructions(task) if isinstance(task, AutoencoderTask) else Generated(task)

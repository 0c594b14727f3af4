"""Outputs of a mesh transformer: what it makes of held-out captions."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from quintet.engine.data.source import Source
from quintet.engine.evaluate import ConcatData
from quintet.engine.task import Batch
from quintet.media.meshes.files import Mesh
from quintet.mesh.outputs import MeshOutputs, mesh_of
from quintet.mesh.transformer.task import TransformerTask
from quintet.shared.outputs import Group
from quintet.shared.sampling import readable


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
        _, meshes = self.task.generate(batch.data["text"], seed=batch.ids[0])
        training = [mesh_of(item) for _, item in islice(self.training, len(items))]
        return Group(
            [mesh_of(i) for i in items], [Mesh(*m) for m in meshes], {"training": training}
        )


outputs = Generated

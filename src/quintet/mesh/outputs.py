"""What the outputs of mesh families share."""

from collections.abc import Mapping
from typing import Any

from quintet.engine.errors import RunError
from quintet.media.meshes.files import Mesh
from quintet.shared.outputs import Outputs


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

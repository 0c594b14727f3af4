"""MeshAutoencoderTrainer: training of a mesh autoencoder from Python."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.mesh import recipes
from quintet.mesh.autoencoder.config import MeshAutoencoderRecipe
from quintet.mesh.autoencoder.model import MeshAutoencoder
from quintet.mesh.autoencoder.task import AutoencoderTask
from quintet.mesh.own_data import MeshTrainer


class MeshAutoencoderTrainer(MeshTrainer):
    """Train a MeshAutoencoder on a folder of 3-D files (`data`), on a data set, or on built-in
    shapes.

        model = MeshAutoencoder(dim=256)
        MeshAutoencoderTrainer(model, data="chairs", max_faces=800, steps=5000).train()

    Its defaults are those of the recipe `mesh/autoencoder`, and every setting is a keyword:
    `max_faces`, `meshes` and the rest. `data_kwargs` names the fields of a data set whose items are
    tuples; by default they are (vertices, faces, text) or (vertices, faces, face_edges, text).
    """

    name = "mesh/autoencoder"
    default_recipe = staticmethod(recipes.autoencoder)
    main = "autoencoder"

    def __init__(
        self,
        model: MeshAutoencoder,
        dataset: Any = None,
        *,
        data_kwargs: Sequence[str] = (),
        **keywords: Any,
    ):
        self.names = data_kwargs
        super().__init__(model, dataset, keywords, {"model": model.config})

    def task(self, recipe: MeshAutoencoderRecipe) -> AutoencoderTask:
        return AutoencoderTask(recipe, self.model, self.sets)

    def tokenize(self, vertices: Tensor, faces: Tensor, face_edges: Tensor | None = None) -> Tensor:
        """Codes (b, f, corners x depth) of meshes, by the averaged weights."""
        model = self.averaged_model()
        device = next(model.parameters()).device
        edges = None if face_edges is None else face_edges.to(device)
        return model.tokenize(vertices.to(device), faces.to(device), edges)

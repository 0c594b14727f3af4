"""MeshTransformerTrainer: training of a mesh transformer from Python."""

from collections.abc import Sequence
from typing import Any

from quintet.engine.errors import RunError
from quintet.mesh import recipes
from quintet.mesh.own_data import CaptionedMeshes, MeshTrainer
from quintet.mesh.transformer.config import MeshTransformerRecipe
from quintet.mesh.transformer.model import MeshTransformer
from quintet.mesh.transformer.task import TransformerTask


class MeshTransformerTrainer(MeshTrainer):
    """Train a MeshTransformer around its trained autoencoder; codes are computed once and cached.

        model = MeshTransformer(autoencoder, dim=512)
        trainer = MeshTransformerTrainer(model, data="chairs", steps=20_000)
        trainer.train()
        meshes = trainer.generate(["a table with three legs"], cond_scale=2.0)

    Its defaults are those of the recipe `mesh/transformer`, and every setting is a keyword:
    `meshes`, `variants` (fixed augmentations of each mesh), `text_drop` and the rest. `data_kwargs`
    names the fields of tuples.
    """

    name = "mesh/transformer"
    default_recipe = staticmethod(recipes.transformer)
    main = "transformer"
    meshes = CaptionedMeshes

    def __init__(
        self,
        model: MeshTransformer,
        dataset: Any = None,
        *,
        data_kwargs: Sequence[str] = (),
        **keywords: Any,
    ):
        if model.autoencoder is None:
            raise RunError("a MeshTransformer learns the codes of an autoencoder: pass it one")
        self.names, longest = data_kwargs, model.config.max_faces
        derived = {
            "model": model.config,
            "meshes.max_faces": longest,
            "autoencoder": "python:autoencoder",
        }
        super().__init__(model, dataset, keywords, derived)
        asked = self.recipe.meshes.max_faces
        if asked > longest:
            raise RunError(
                f"meshes.max_faces is {asked}, but the model's max_faces is {longest}: "
                "raise the model's, or lower that of the data"
            )

    def stages(self) -> dict[str, Any]:
        return {"autoencoder": self.model.autoencoder}

    def task(self, recipe: MeshTransformerRecipe) -> TransformerTask:
        return TransformerTask(recipe, self.model, self.sets)

    def generate(self, texts: Sequence[str] | None = None, **keywords: Any) -> Any:
        """New meshes by the averaged weights; keywords are those of MeshTransformer.generate."""
        return self.averaged_model().generate(texts, **keywords)

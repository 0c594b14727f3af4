"""RetopologyTrainer: training of retopology from Python."""

from collections.abc import Sequence
from typing import Any

from quintet.mesh import recipes
from quintet.mesh.own_data import MeshTrainer
from quintet.mesh.retopology.config import RetopologyRecipe
from quintet.mesh.retopology.model import Retopology
from quintet.mesh.retopology.task import RetopologyTask


class RetopologyTrainer(MeshTrainer):
    """Train a Retopology on clean meshes: a folder of 3-D files (`data`), a data set of vertices
    and faces, or built-in shapes. Scans are made of them.

        trainer = RetopologyTrainer(Retopology(dim=256), data="clean", steps=5000)
        trainer.train()
        vertices, faces = trainer.retopologise(points, 500)[0]

    Its defaults are those of the recipe `mesh/retopology`, and every setting is a keyword:
    `meshes`, `scans`, `mirror` and the rest. `data_kwargs` names the fields of tuples.
    """

    name = "mesh/retopology"
    default_recipe = staticmethod(recipes.retopology)
    main = "retopology"

    def __init__(
        self,
        model: Retopology,
        dataset: Any = None,
        *,
        data_kwargs: Sequence[str] = (),
        **keywords: Any,
    ):
        self.names = data_kwargs
        super().__init__(model, dataset, keywords, {"model": model.config})

    def task(self, recipe: RetopologyRecipe) -> RetopologyTask:
        return RetopologyTask(recipe, self.model, self.sets)

    def retopologise(self, points: Any, faces: int | None = None, **keywords: Any) -> Any:
        """Clean meshes by the averaged weights; keywords are those of Retopology.retopologise."""
        return self.averaged_model().retopologise(points, faces, **keywords)

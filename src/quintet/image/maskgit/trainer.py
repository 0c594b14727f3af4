"""MaskGitTrainer: training of a generator of images from Python."""

from typing import Any

from quintet.image import recipes
from quintet.image.data import open_data
from quintet.image.maskgit.config import MaskGitRecipe
from quintet.image.maskgit.model import MaskGit
from quintet.image.maskgit.task import MaskGitTask
from quintet.image.own_data import OwnImages
from quintet.shared.generation.trainer import GeneratorTrainer


class MaskGitTrainer(GeneratorTrainer[MaskGit]):
    """Train a MaskGit around its trained tokenizer, on a folder of captioned images (`data`), on a
    data set, or on the built-in figures; ids are computed once and cached.

        model = MaskGit(vae, image_size=128, dim=768)
        trainer = MaskGitTrainer(model, data="photos", steps=20_000)
        trainer.train()
        images = trainer.generate(["a red star on white"], cond_scale=3.0)

    Its defaults are those of the recipe `image/maskgit`, and every setting is a keyword: `images`,
    `variants` (fixed augmentations of each image), `text_drop` and the rest.
    """

    name = "image/maskgit"
    default_recipe = staticmethod(recipes.maskgit)

    def __init__(self, model: MaskGit, dataset: Any = None, **keywords: Any):
        channels = model.tokenizer.config.channels
        derived = {"images.size": model.image_size, "images.channels": channels}
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: MaskGitRecipe) -> OwnImages:
        return OwnImages(dataset, recipe.images.channels)

    def open(self, recipe: MaskGitRecipe) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def task(self, recipe: MaskGitRecipe) -> MaskGitTask:
        return MaskGitTask(recipe, self.model, self.sets)

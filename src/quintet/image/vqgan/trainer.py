"""VQGanVAETrainer: training of an image tokenizer from Python."""

from typing import Any

from quintet.image import recipes
from quintet.image.data import open_data
from quintet.image.own_data import OwnImages
from quintet.image.vqgan.config import VQGanRecipe
from quintet.image.vqgan.model import VQGanVAE
from quintet.image.vqgan.task import VQGanTask
from quintet.shared.tokenizer.trainer import TokenizerTrainer


class VQGanVAETrainer(TokenizerTrainer[VQGanVAE]):
    """Train a VQGanVAE on a folder of images (`data`), on a data set, or on the built-in scenes.

        vae = VQGanVAE(dim=64)
        VQGanVAETrainer(vae, data="photos", size=128, steps=10_000).train()

    Its defaults are those of the recipe `image/vqgan`, and every setting is a keyword: `size`,
    `adversarial` (none, hinge, relativistic), `adversarial_from`, `discriminator`, `penalty`,
    `perceptual`, `vgg` and the rest.
    """

    name = "image/vqgan"
    default_recipe = staticmethod(recipes.vqgan)
    main = "vae"

    def __init__(self, vae: VQGanVAE, dataset: Any = None, **keywords: Any):
        derived = {"model": vae.config, "images.channels": vae.config.channels}
        super().__init__(vae, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VQGanRecipe) -> OwnImages:
        return OwnImages(dataset, recipe.model.channels)

    def open(self, recipe: VQGanRecipe) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def task(self, recipe: VQGanRecipe) -> VQGanTask:
        return VQGanTask(recipe, self.model, self.sets)

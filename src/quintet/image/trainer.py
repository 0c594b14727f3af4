"""VQGanVAETrainer: training of the image tokenizer from Python."""

from typing import Any

from quintet.image.config import VQGanRecipe
from quintet.image.data import open_data
from quintet.image.model import VQGanVAE
from quintet.image.task import VQGanTask
from quintet.shared.tokenizer.trainer import OwnPixels, TokenizerTrainer


class OwnImages(OwnPixels):
    fields = {"image": "image", "images": "image", "text": "text"}
    shapes = {3: "an image (c, h, w)"}


class VQGanVAETrainer(TokenizerTrainer[VQGanVAE]):
    """Train a VQGanVAE on a folder of images (`data`), on a data set, or on the built-in scenes.

        vae = VQGanVAE(dim=64)
        VQGanVAETrainer(vae, data="photos", size=128, steps=10_000).train()

    Every setting of `VQGanRecipe` is a keyword: `size`, `adversarial` (none, hinge, relativistic),
    `adversarial_from`, `discriminator`, `penalty`, `perceptual`, `vgg` and the rest.
    """

    name = "image/vqgan"
    main = "vae"

    def __init__(self, vae: VQGanVAE, dataset: Any = None, **keywords: Any):
        derived = {"model": vae.config, "images.channels": vae.config.channels}
        super().__init__(vae, VQGanRecipe(), dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VQGanRecipe) -> OwnImages:
        return OwnImages(dataset, recipe.model.channels)

    def open(self, recipe: VQGanRecipe) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def task(self, recipe: VQGanRecipe) -> VQGanTask:
        return VQGanTask(recipe, self.model, self.sets)

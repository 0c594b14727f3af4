"""ImageFlowTrainer: training of a flow generator of images from Python."""

from typing import Any

from quintet.image import recipes
from quintet.image.data import open_data
from quintet.image.flow.config import ImageFlowRecipe
from quintet.image.flow.model import ImageFlow
from quintet.image.flow.task import ImageFlowTask
from quintet.image.own_data import OwnImages
from quintet.shared.generation.trainer import GeneratorTrainer


class ImageFlowTrainer(GeneratorTrainer[ImageFlow]):
    """Train an ImageFlow around its trained autoencoder, on a folder of captioned images (`data`),
    on a data set, or on the built-in figures; latents are computed once and cached.

        model = ImageFlow(vae, image_size=128, dim=512)
        trainer = ImageFlowTrainer(model, data="photos", steps=20_000)
        trainer.train()
        images = trainer.generate(["a red star on white"], cond_scale=3.0)

    Its defaults are those of the recipe `image/flow`, and every setting is a keyword: `images`,
    `variants` (fixed augmentations of each image), `text_drop`, `known_share` and the rest.
    """

    name = "image/flow"
    default_recipe = staticmethod(recipes.flow)

    def __init__(self, model: ImageFlow, dataset: Any = None, **keywords: Any):
        channels = model.tokenizer.config.channels
        derived = {"images.size": model.image_size, "images.channels": channels}
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: ImageFlowRecipe) -> OwnImages:
        return OwnImages(dataset, recipe.images.channels)

    def open(self, recipe: ImageFlowRecipe) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def task(self, recipe: ImageFlowRecipe) -> ImageFlowTask:
        return ImageFlowTask(recipe, self.model, self.sets)

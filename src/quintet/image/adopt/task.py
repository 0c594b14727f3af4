"""Training of an adopted autoencoder of images, as of a VQGanVAE."""

from typing import Any, cast

from quintet.image.adopt.config import ImageAdoptRecipe
from quintet.image.adopt.model import AdoptedImages
from quintet.image.vqgan.task import VQGanTask
from quintet.shared.adopt.task import Adopting, adopted


class ImageAdoptTask(Adopting, VQGanTask):
    def __init__(self, recipe: ImageAdoptRecipe) -> None:
        shape = (recipe.images.channels, *recipe.images.size)
        model, self.unused = adopted(AdoptedImages, recipe, shape)
        super().__init__(cast(Any, recipe), cast(Any, model))
        self.leave_eager()


build = ImageAdoptTask

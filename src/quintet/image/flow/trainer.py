"""ImageFlowTrainer: training of a flow generator of images from Python."""

from quintet.image import recipes
from quintet.image.flow.model import ImageFlow
from quintet.image.flow.task import ImageFlowTask
from quintet.image.generator import PictureTrainer


class ImageFlowTrainer(PictureTrainer[ImageFlow]):
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
    Task = ImageFlowTask

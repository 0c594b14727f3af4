"""ImageFlowTrainer and ImageFlowFewTrainer: training of flow generators of images from Python."""

from quintet.image import recipes
from quintet.image.flow.model import ImageFlow
from quintet.image.flow.task import ImageFlowFewTask, ImageFlowTask
from quintet.image.generator import PictureTrainer
from quintet.shared.flow.trainer import FewStepsTrainer


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


class ImageFlowFewTrainer(FewStepsTrainer[ImageFlow], PictureTrainer[ImageFlow]):
    """Distil a trained ImageFlow, the teacher, to 1 to 8 steps; the data as in ImageFlowTrainer.

        trainer = ImageFlowFewTrainer(teacher, data="photos", steps=400)
        trainer.train()
        images = trainer.generate(["a red boat"], steps=2)

    Its defaults are those of the recipe `image/flow_few`, and every setting is a keyword:
    `guidance` (of the teacher, part of the weights of the student), `jump_every` and the rest.
    """

    name = "image/flow_few"
    default_recipe = staticmethod(recipes.flow_few)
    Task = ImageFlowFewTask

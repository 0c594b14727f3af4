"""VQGanVAETrainer, MaskGitTrainer: training of image models from Python."""

from typing import Any

from quintet.image.config import MaskGitRecipe, VQGanRecipe
from quintet.image.data import open_data
from quintet.image.maskgit import MaskGit
from quintet.image.maskgit_task import MaskGitTask
from quintet.image.model import VQGanVAE
from quintet.image.task import VQGanTask
from quintet.shared.maskgit.trainer import MaskedTrainer
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


class MaskGitTrainer(MaskedTrainer[MaskGit]):
    """Train a MaskGit around its trained tokenizer, on a folder of captioned images (`data`), on a
    data set, or on the built-in figures; ids are computed once and cached.

        model = MaskGit(vae, image_size=128, dim=768)
        trainer = MaskGitTrainer(model, data="photos", steps=20_000)
        trainer.train()
        images = trainer.generate(["a red star on white"], cond_scale=3.0)

    Every setting of `MaskGitRecipe` is a keyword: `images`, `variants` (fixed augmentations of each
    image), `text_drop` and the rest.
    """

    name = "image/maskgit"

    def __init__(self, model: MaskGit, dataset: Any = None, **keywords: Any):
        channels = model.tokenizer.config.channels
        derived = {"images.size": model.image_size, "images.channels": channels}
        super().__init__(model, MaskGitRecipe(), dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: MaskGitRecipe) -> OwnImages:
        return OwnImages(dataset, recipe.images.channels)

    def open(self, recipe: MaskGitRecipe) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def task(self, recipe: MaskGitRecipe) -> MaskGitTask:
        return MaskGitTask(recipe, self.model, self.sets)

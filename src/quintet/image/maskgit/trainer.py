"""MaskGitTrainer: training of a generator of images from Python."""

from quintet.image import recipes
from quintet.image.generator import PictureTrainer
from quintet.image.maskgit.model import MaskGit
from quintet.image.maskgit.task import MaskGitTask


class MaskGitTrainer(PictureTrainer[MaskGit]):
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
    Task = MaskGitTask

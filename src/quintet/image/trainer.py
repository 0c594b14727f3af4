"""VQGanVAETrainer: the image room for Python users."""

from pathlib import Path
from typing import Any

from quintet.image.config import DiscriminatorConfig, ImageDataConfig, VQGanRecipe
from quintet.image.data import open_data
from quintet.image.model import VQGanVAE
from quintet.image.task import VQGanTask
from quintet.shared.tokenizer_config import TokenizerLossConfig
from quintet.shared.tokenizer_trainer import OwnData, TokenizerTrainer


class AsImages(OwnData):
    names = ("image", "images")
    shapes = {3: "an image (3, h, w)"}


class VQGanVAETrainer(TokenizerTrainer):
    """Train a VQGanVAE on a folder of images, on a data set, or on the built-in scenes.

        vae = VQGanVAE(dim=64)
        VQGanVAETrainer(vae, folder="photos", image_size=128, num_train_steps=10_000).train()

    Beside what every trainer takes: `image_size`, `adversarial` (none, hinge, relativistic),
    `adversarial_from` (share of the run before the critic starts), `discriminator` (its settings),
    `penalty`, `penalty_every`, `perceptual` (weight) and `vgg` (a local file of weights).
    """

    name = "image/vqgan"
    main = "vae"

    def __init__(
        self,
        vae: VQGanVAE,
        *,
        folder: str | Path | None = None,
        dataset: Any = None,
        image_size: int | tuple[int, int] = 128,
        discriminator: DiscriminatorConfig | None = None,
        **keywords: Any,
    ):
        shared, losses = self.keywords_of(keywords)
        place, self.sets = self.sets_of(folder, dataset, shared, AsImages)
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        images = ImageDataConfig(size=size, valid_fraction=shared.valid_frac)
        train = self.sets["train"] if self.sets else open_data(place, images, "train", shared.seed)
        recipe = shared.recipe(
            len(train),
            VQGanRecipe,
            model=vae.config,
            images=images,
            losses=TokenizerLossConfig(**losses),
            discriminator=discriminator or DiscriminatorConfig(),
            vae=shared.optimiser(),
            critic=shared.optimiser(average=0.0),
            data=place,
        )
        super().__init__(vae, shared, recipe)

    def task(self, recipe: VQGanRecipe) -> VQGanTask:
        return VQGanTask(recipe, self.model, self.sets)  # type: ignore[arg-type]

"""VQGanVAETrainer: the image room for Python users."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.stream import name_of, read_sample
from quintet.engine.trainer import BaseTrainer, Keywords, modern, shared_keywords, split
from quintet.image.config import DiscriminatorConfig, ImageDataConfig, VQGanRecipe
from quintet.image.data import open_data
from quintet.image.model import VQGanVAE
from quintet.image.task import VQGanTask
from quintet.shared.tokenizer_config import TokenizerLossConfig


class AsImages:
    """A data set of the user's: items that are tensors, tuples that begin with one, or dicts."""

    def __init__(self, source: Any):
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        item = read_sample(self.source, index, key)
        text = ""
        if isinstance(item, dict):
            text, item = str(item.get("text", "")), item.get("image", item.get("images"))
        elif isinstance(item, (tuple, list)):
            item = item[0]
        if isinstance(item, np.ndarray):
            item = torch.from_numpy(item)
        if not isinstance(item, Tensor) or item.ndim != 3:
            raise TypeError(
                "an item of the data set must be an image (3, h, w), a tuple that begins with one, "
                f"or a dict with 'image'; sample {index} is {type(item).__name__}"
            )
        return {"image": item, "text": text}

    def name(self, index: int) -> str:
        return name_of(self.source, index)


class VQGanVAETrainer(BaseTrainer):
    """Train a VQGanVAE on a folder of images, on a data set, or on the built-in scenes.

        vae = VQGanVAE(dim=64)
        VQGanVAETrainer(vae, folder="photos", image_size=128, num_train_steps=10_000).train()

    Beside what every trainer takes: `image_size`, `adversarial` (none, hinge, relativistic),
    `adversarial_from` (share of the run before the critic starts), `discriminator` (its settings),
    `penalty`, `penalty_every`, `perceptual` (weight) and `vgg` (a local file of weights).
    """

    name = "image/vqgan"
    main = "vae"
    own = frozenset(
        {"adversarial", "adversarial_from", "penalty", "penalty_every", "perceptual", "vgg"}
    )

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
        if folder is not None and dataset is not None:
            raise RunError("give folder or dataset, and not both")
        given = modern(keywords, shared_keywords() | self.own)
        losses = TokenizerLossConfig(**{n: given.pop(n) for n in list(given) if n in self.own})
        shared = Keywords(**given)
        if shared.val_dataset is not None and dataset is None:
            raise RunError("val_dataset goes with dataset; a folder holds out its valid_frac")
        height, width = (image_size,) * 2 if isinstance(image_size, int) else image_size
        images = ImageDataConfig(size=(height, width), valid_fraction=shared.valid_frac)
        self.sets = self._own_sets(dataset, shared) if dataset is not None else None
        place = str(Path(folder).resolve()) if folder is not None else None
        train = self.sets["train"] if self.sets else open_data(place, images, "train", shared.seed)
        recipe = shared.recipe(
            len(train),
            VQGanRecipe,
            model=vae.config,
            images=images,
            losses=losses,
            discriminator=discriminator or DiscriminatorConfig(),
            vae=shared.optimiser(),
            critic=shared.optimiser(average=0.0),
            data="python:dataset" if self.sets else place,
        )
        super().__init__(vae, shared, recipe)

    @staticmethod
    def _own_sets(dataset: Any, shared: Keywords) -> dict[str, Any]:
        if shared.val_dataset is not None:
            return {"train": AsImages(dataset), "valid": AsImages(shared.val_dataset)}
        return split(AsImages(dataset), shared.valid_frac, shared.seed)

    def task(self, recipe: VQGanRecipe) -> VQGanTask:
        return VQGanTask(recipe, self.model, self.sets)  # type: ignore[arg-type]

    def tokenize(self, images: Tensor) -> Tensor:
        """Ids of images in 0..1, by the averaged weights."""
        return self._averaged().tokenize(images.to(self._device))

    def reconstruct(self, images: Tensor) -> Tensor:
        """Images after a trip through their ids, by the averaged weights."""
        return self._averaged().reconstruct(images.to(self._device))

    def _averaged(self) -> VQGanVAE:
        model = self.averaged_model()
        assert isinstance(model, VQGanVAE)
        return model

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

"""ImageDecoderTrainer: fine-tuning of the decoder of any autoencoder that is a module of Python."""

from collections.abc import Mapping
from typing import Any, cast

from quintet.image import recipes
from quintet.image.adopt.config import ImageAdoptRecipe
from quintet.image.data import open_data
from quintet.image.own_data import OwnImages
from quintet.image.vqgan.task import VQGanTask
from quintet.shared.adopt.task import Adopting
from quintet.shared.generation.module import LatentModule
from quintet.shared.tokenizer.trainer import TokenizerTrainer


class DecoderTask(Adopting, VQGanTask):
    def __init__(self, recipe: ImageAdoptRecipe, model: LatentModule, sets: Any) -> None:
        self.unused = model.train_decoder()
        super().__init__(cast(Any, recipe), cast(Any, model), sets)
        self.leave_eager()


class ImageDecoderTrainer(TokenizerTrainer[LatentModule]):
    """Fine-tune the decoder of a published autoencoder on a folder of images (`data`), on a data
    set, or on the built-in scenes. Its latents stay equal to the bit.

        taesd = TAESD("taef2_encoder.pth", "taef2_decoder.pth")
        trainer = ImageDecoderTrainer(LatentModule(taesd, pixels="0..1"), data="photos", size=128)
        trainer.train()
        torch.save(trainer.averaged_model().network.decoder.state_dict(), "taef2_photos.pth")

    Its defaults are those of the recipe `image/adopt`, and every setting is a keyword. A run keeps
    the weights and not the code of the module: resume it from Python, `train(resume=True)`.
    """

    default_recipe = staticmethod(recipes.adopt)
    main = "vae"

    def __init__(self, model: LatentModule, dataset: Any = None, **keywords: Any):
        if keywords.get("train", "decoder") != "decoder":
            raise TypeError("train: of a module of Python only the decoder can be trained")
        keywords.setdefault("steps", None if "num_epochs" in keywords else recipes.adopt().steps)
        self.original = model.copy_for_eval()
        derived = {"images.channels": model.config.channels, "autoencoder": "python:autoencoder"}
        super().__init__(model, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: ImageAdoptRecipe) -> OwnImages:
        return OwnImages(dataset, self.model.config.channels)

    def open(self, recipe: ImageAdoptRecipe) -> Any:
        return open_data(recipe.data, recipe.images, "train", recipe.seed)

    def stages(self) -> Mapping[str, Any]:
        return {"autoencoder": self.original}

    def task(self, recipe: ImageAdoptRecipe) -> DecoderTask:
        return DecoderTask(recipe, self.model, self.sets)

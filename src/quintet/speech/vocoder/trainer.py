"""VocoderTrainer: training of the vocoder from Python."""

from typing import Any

from torch import Tensor

from quintet.engine.trainer import BaseTrainer
from quintet.shared.segments import OwnSounds
from quintet.speech import recipes
from quintet.speech.vocoder.config import VocoderRecipe
from quintet.speech.vocoder.data import open_data, segments
from quintet.speech.vocoder.model import Vocoder
from quintet.speech.vocoder.task import VocoderTask


class VocoderTrainer(BaseTrainer[Vocoder]):
    """Train a Vocoder on a folder of recordings (`data`), a data set, or the built-in speech.

        vocoder = Vocoder(dim=512)
        trainer = VocoderTrainer(vocoder, data="readings", steps=100_000)
        trainer.train()
        copies = trainer.copy(sounds)

    Its defaults are those of the recipe `speech/vocoder`, and every setting is a keyword:
    `recordings`, `losses`, `discriminators` and the rest.
    """

    name = "speech/vocoder"
    default_recipe = staticmethod(recipes.vocoder)
    main = "vocoder"

    def __init__(self, vocoder: Vocoder, dataset: Any = None, **keywords: Any):
        derived = {"model": vocoder.config, "recordings.sample_rate": vocoder.config.sample_rate}
        super().__init__(vocoder, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VocoderRecipe) -> OwnSounds:
        return OwnSounds(dataset, segments(recipe))

    def open(self, recipe: VocoderRecipe) -> Any:
        return open_data(recipe, "train")

    def task(self, recipe: VocoderRecipe) -> VocoderTask:
        return VocoderTask(recipe, self.model, self.sets)

    def copy(self, sounds: Tensor) -> Tensor:
        """Sounds (b, n) or (n,) through log-mels, by the averaged weights."""
        return self.averaged_model().copy(sounds)

"""VocoderTrainer: training of the vocoder from Python."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.engine.keys import Key
from quintet.engine.trainer import BaseTrainer
from quintet.shared.own_data import OwnData
from quintet.shared.segments import Segments
from quintet.speech import recipes
from quintet.speech.own_data import as_audio
from quintet.speech.vocoder.config import VocoderRecipe
from quintet.speech.vocoder.data import open_data, segments
from quintet.speech.vocoder.model import Vocoder
from quintet.speech.vocoder.task import VocoderTask


class OwnSounds(OwnData):
    """Items are sounds (n,) or (channels, n) at the rate of the model, tuples that begin with one,
    or dicts."""

    fields = {"audio": "audio", "wav": "audio", "wave": "audio"}
    strict = False
    items = "give a sound, a tuple that begins with one, or a dict with 'audio'"

    def __init__(self, dataset: Any, segments: Segments):
        super().__init__(dataset)
        self.segments = segments

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        return [("audio", values[0])]

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        if "audio" not in fields:
            raise TypeError(f"{where} has no audio; {self.items}")
        return {"audio": self.segments.cut(as_audio(fields["audio"], None, where), key)}


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

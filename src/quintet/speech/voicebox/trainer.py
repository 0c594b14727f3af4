"""VoiceBoxTrainer: training of a VoiceBox from Python."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from torch import Tensor

from quintet.compat.keywords import renamed
from quintet.engine.trainer import BaseTrainer
from quintet.speech import recipes
from quintet.speech.data import Buckets, length_plan, open_data
from quintet.speech.own_data import OwnRecordings
from quintet.speech.voicebox.config import VoiceBoxRecipe
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voicebox.task import VoiceBoxTask


class VoiceBoxTrainer(BaseTrainer[VoiceBox]):
    """Train a VoiceBox on a folder of recordings with texts (`data`), a data set, or the built-in
    speech.

        voicebox = VoiceBox(dim=512)
        trainer = VoiceBoxTrainer(voicebox, data="readings", steps=100_000)
        trainer.train()
        (sound,) = trainer.generate(texts=["good morning"], steps=16)

    Its defaults are those of the recipe `speech/voicebox`, and every setting is a keyword:
    `recordings`, `losses`, `sampling` and the rest. A batch has as many frames as `batch_size`
    recordings of the maximum length; it holds more of shorter ones.
    """

    name = "speech/voicebox"
    default_recipe = staticmethod(recipes.voicebox)
    main = "voicebox"

    @renamed(cfm_wrapper="voicebox")
    def __init__(self, voicebox: VoiceBox, dataset: Any = None, **keywords: Any):
        derived = {"model": voicebox.config, "recordings.sample_rate": voicebox.config.sample_rate}
        super().__init__(voicebox, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: VoiceBoxRecipe) -> OwnRecordings:
        return OwnRecordings(dataset, Buckets(recipe.recordings, recipe.model))

    def open(self, recipe: VoiceBoxRecipe) -> Any:
        buckets = Buckets(recipe.recordings, recipe.model)
        return open_data(recipe.data, buckets, "train", recipe.seed)

    def epoch_size(self, train: Any, recipe: VoiceBoxRecipe) -> int:
        """Recordings of the maximum length that the data amounts to."""
        buckets = Buckets(recipe.recordings, recipe.model)
        plan = length_plan(train, buckets, recipe.seed, recipe.batch_size)
        return ceil(sum(plan.lengths) / buckets.count)

    def task(self, recipe: VoiceBoxRecipe) -> VoiceBoxTask:
        return VoiceBoxTask(recipe, self.model, self.sets)

    def generate(self, *, texts: str | Sequence[str] | None = None, **options: Any) -> list[Tensor]:
        """Speech by the averaged weights; takes and returns what `VoiceBox.sample` does."""
        texts = [texts] if isinstance(texts, str) else texts
        return self.averaged_model().sample(texts=texts, **options)

"""CodecTrainer: training of a codec from Python."""

from typing import Any

from quintet.music import recipes
from quintet.music.codec.config import CodecRecipe
from quintet.music.codec.model import Codec
from quintet.music.codec.task import CodecTask
from quintet.music.coding import segments_of
from quintet.music.excerpts import open_data
from quintet.shared.segments import OwnSounds
from quintet.shared.tokenizer.trainer import TokenizerTrainer


class CodecTrainer(TokenizerTrainer[Codec]):
    """Train a Codec on a folder of audio files (`data`), a data set, or the built-in tunes.

        codec = Codec(sample_rate=44_100, channels=2)
        trainer = CodecTrainer(codec, data="songs", steps=100_000)
        trainer.train()
        copies = trainer.reconstruct(sounds)  # (b, 2, n)

    Its defaults are those of the recipe `music/codec`, and every setting is a keyword.
    """

    name = "music/codec"
    default_recipe = staticmethod(recipes.codec)
    main = "codec"

    def __init__(self, codec: Codec, dataset: Any = None, **keywords: Any):
        super().__init__(codec, dataset, keywords, {"model": codec.config})

    def adapt(self, dataset: Any, recipe: CodecRecipe) -> OwnSounds:
        return OwnSounds(dataset, segments_of(recipe, self.model))

    def open(self, recipe: CodecRecipe) -> Any:
        return open_data(recipe, "train", segments_of(recipe, self.model))

    def task(self, recipe: CodecRecipe) -> CodecTask:
        return CodecTask(recipe, self.model, self.sets)

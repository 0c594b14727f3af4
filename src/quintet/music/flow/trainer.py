"""MusicFlowTrainer: training of a flow generator of music from Python."""

from typing import Any

from quintet.music import recipes
from quintet.music.flow.data import OwnSongs, open_songs
from quintet.music.flow.model import MusicFlow
from quintet.music.flow.task import MusicFlowTask, windows_of
from quintet.shared.generation.trainer import GeneratorTrainer


class MusicFlowTrainer(GeneratorTrainer[MusicFlow]):
    """Train a MusicFlow around its trained codec, on a folder of captioned songs (`data`), on a
    data set, or on the built-in songs; latents are computed once and cached.

        model = MusicFlow(codec, seconds=10, dim=512)
        trainer = MusicFlowTrainer(model, data="songs", steps=20_000)
        trainer.train()
        sounds = trainer.generate(["slow strings in D minor at 72 bpm"], seconds=30)

    Its defaults are those of the recipe `music/flow`, and every setting is a keyword: `sounds`,
    `variants` (windows of each song), `text_drop`, `known_share` and the rest.
    """

    name = "music/flow"
    default_recipe = staticmethod(recipes.flow)

    def __init__(self, model: MusicFlow, dataset: Any = None, **keywords: Any):
        super().__init__(model, dataset, keywords, {"sounds.seconds": model.seconds})

    def adapt(self, dataset: Any, recipe: Any) -> OwnSongs:
        return OwnSongs(dataset, windows_of(recipe, self.model.tokenizer))

    def open(self, recipe: Any) -> Any:
        windows = windows_of(recipe, self.model.tokenizer)
        return open_songs(recipe.data, recipe.sounds, "train", recipe.seed, windows)

    def task(self, recipe: Any) -> MusicFlowTask:
        return MusicFlowTask(recipe, self.model, self.sets)

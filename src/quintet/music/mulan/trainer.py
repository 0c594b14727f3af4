"""MuLaNTrainer: training of a MuLaN from Python."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.trainer import BaseTrainer
from quintet.music import recipes
from quintet.music.data import open_data
from quintet.music.mulan.config import MuLaNRecipe
from quintet.music.mulan.model import MuLaN
from quintet.music.mulan.task import MuLaNTask
from quintet.music.own_data import OwnSounds


class MuLaNTrainer(BaseTrainer[MuLaN]):
    """Train a MuLaN on a folder of sounds with captions (`data`), on a data set, or on the built-in
    music.

        mulan = MuLaN(dim=384)
        MuLaNTrainer(mulan, data="songs", steps=20_000, batch_size=64).train()

    Its defaults are those of the recipe `music/mulan`, and every setting is a keyword: `seconds`
    (the longest crop; or `data_max_length` in samples), `sounds`, `losses` and the rest.
    `data_kwargs` names the fields of tuples.
    """

    name = "music/mulan"
    default_recipe = staticmethod(recipes.mulan)
    main = "mulan"

    def __init__(
        self,
        mulan: MuLaN,
        dataset: Any = None,
        *,
        data_max_length: int | None = None,
        data_kwargs: Sequence[str] = (),
        **keywords: Any,
    ):
        self.names = data_kwargs
        derived: dict[str, Any] = {
            "model": mulan.config,
            "sounds.sample_rate": mulan.config.sample_rate,
        }
        seconds = keywords.get("seconds", keywords.get("data_max_length_seconds"))
        lengths = (seconds, data_max_length, keywords.get("sounds"))
        if sum(value is not None for value in lengths) > 1:
            raise RunError("give one of seconds, data_max_length and sounds")
        if data_max_length is not None:
            seconds = derived["sounds.seconds"] = data_max_length / mulan.config.sample_rate
        if seconds is not None:
            derived["sounds.min_seconds"] = min(seconds, recipes.mulan().sounds.min_seconds)
        super().__init__(mulan, dataset, keywords, derived)

    def adapt(self, dataset: Any, recipe: MuLaNRecipe) -> OwnSounds:
        return OwnSounds(
            dataset, round(recipe.sounds.seconds * recipe.sounds.sample_rate), self.names
        )

    def open(self, recipe: MuLaNRecipe) -> Any:
        return open_data(recipe.data, recipe.sounds, "train", recipe.seed)

    def task(self, recipe: MuLaNRecipe) -> MuLaNTask:
        return MuLaNTask(recipe, self.model, self.sets)

    def embed_audio(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) unit-length embeddings of sounds (b, n), by the averaged weights."""
        return self.averaged_model().embed_audio(wavs, lengths)

    def embed_text(self, texts: str | Sequence[str]) -> Tensor:
        """(b, l) unit-length embeddings of texts, by the averaged weights."""
        return self.averaged_model().embed_text(texts)

    @torch.no_grad()
    def get_audio_latents(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`MuLaN.get_audio_latents`, by the averaged weights."""
        return self.averaged_model().get_audio_latents(wavs, lengths)

    @torch.no_grad()
    def get_text_latents(
        self, texts: Tensor | None = None, raw_texts: Sequence[str] | None = None
    ) -> Tensor:
        """`MuLaN.get_text_latents`, by the averaged weights."""
        return self.averaged_model().get_text_latents(texts, raw_texts)

    def quantize_latents(self, latents: Tensor) -> Tensor:
        """(b, depth) codes of embeddings, by the averaged weights."""
        model = self.averaged_model()
        return model.quantize_latents(latents.to(model.log_temperature.device))

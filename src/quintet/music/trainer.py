"""MuLaNTrainer: contrastive training of MuLaN from Python."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.trainer import BaseTrainer
from quintet.music.config import MuLaNRecipe, MusicDataConfig
from quintet.music.data import open_data
from quintet.music.model import MuLaN
from quintet.music.task import MuLaNTask
from quintet.shared.own_data import OwnData, as_ids, as_mono, as_tensor, kind_of


class OwnSounds(OwnData):
    """Items hold a sound (n,) or (channels, n), mixed down to mono, and its caption as a string or
    as token ids. A sound longer than `longest` samples is cropped, at random by its key."""

    fields = {
        "wavs": "wavs",
        "wav": "wavs",
        "audio": "wavs",
        "texts": "texts",
        "raw_texts": "raw_texts",
        "raw_text": "raw_texts",
        "text": "raw_texts",
        "caption": "raw_texts",
    }
    items = "floats are sounds, strings are raw_texts, integers are texts (token ids)"

    def __init__(self, dataset: Any, longest: int, names: Sequence[str] = ()):
        super().__init__(dataset, names)
        self.longest = longest

    def texts(self, index: int) -> list[str]:
        return [self.keyed(index, None)["text"]]

    def length(self, index: int) -> int:
        """The maximum: the length of a sound is known only once it is read."""
        return self.longest

    def field(self, name: str, value: Any) -> str:
        """Strings are never token ids, whatever their name."""
        return "raw_texts" if name == "texts" and isinstance(value, str) else self.fields[name]

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        if len(values) < 2:
            kind = type(values[0]).__name__ if values else "nothing"
            raise TypeError(
                f"{where} has only {kind}; items must be dicts, or tuples of a sound and a caption"
            )
        return [(self._by_type(value, where), value) for value in values]

    def _by_type(self, value: Any, where: str) -> str:
        value = as_tensor(value)
        if isinstance(value, str):
            return "raw_texts"
        if isinstance(value, Tensor) and value.is_floating_point():
            return "wavs"
        if isinstance(value, Tensor) and value.dtype == torch.int64:
            return "texts"
        raise TypeError(
            f"{where} has a field of {kind_of(value)}, which cannot be routed; {self.items}"
        )

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        if "wavs" not in fields:
            raise TypeError(f"{where} has no sound; {self.items}")
        if ("texts" in fields) == ("raw_texts" in fields):
            raise TypeError(f"{where} needs one caption, a string or token ids; {self.items}")
        wav = as_mono(fields["wavs"], f"the sound of {where}")
        if not wav.isfinite().all():
            raise ValueError(f"the sound of {where} has non-finite samples")
        wav = self._crop(wav, key)
        sample = {"wav": wav, "length": len(wav), "text": str(fields.get("raw_texts", ""))}
        if "texts" in fields:
            remedy = "token ids (t,), or strings as raw_texts"
            sample["tokens"] = as_ids(fields["texts"], f"texts of {where}", remedy)
        return sample

    def _crop(self, wav: Tensor, key: Key | None) -> Tensor:
        spare = len(wav) - self.longest
        if spare <= 0:
            return wav
        start = key.random("crop").random() if key is not None else 0.5
        first = round(start * spare)
        return wav[first : first + self.longest].clone()


class MuLaNTrainer(BaseTrainer[MuLaN]):
    """Train a MuLaN on a folder of sounds with captions (`data`), on a data set, or on the built-in
    music.

        mulan = MuLaN(dim=384)
        MuLaNTrainer(mulan, data="songs", steps=20_000, batch_size=64).train()

    Every setting of `MuLaNRecipe` is a keyword: `seconds` (the longest crop; or `data_max_length`
    in samples), `sounds`, `losses` and the rest. `data_kwargs` names the fields of tuples.
    """

    name = "music/mulan"
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
            derived["sounds.min_seconds"] = min(seconds, MusicDataConfig.min_seconds)
        super().__init__(mulan, MuLaNRecipe(), dataset, keywords, derived)

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

"""MuLaNTrainer: the music room for Python users."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.config import resolved
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.stream import name_of, read_sample
from quintet.engine.trainer import BaseTrainer, Keywords, modern, shared_keywords, split
from quintet.music.config import MuLaNRecipe, MusicDataConfig, MusicLossConfig
from quintet.music.data import open_data
from quintet.music.model import MuLaN
from quintet.music.task import MuLaNTask

NAMES = {
    "wavs": "wavs",
    "wav": "wavs",
    "audio": "wavs",
    "texts": "texts",
    "raw_texts": "raw_texts",
    "raw_text": "raw_texts",
    "text": "raw_texts",
    "caption": "raw_texts",
}
KINDS = "floats are sounds, strings are raw_texts, whole numbers are texts (ids)"


class AsSounds:
    """A data set of the user's: dicts, tuples with names (`data_kwargs`), or tuples by type.

    An item holds a sound (n,) or (channels, n), which are mixed to one, and its caption as a string
    or as ids. A sound longer than `longest` is cut, where its key says; without a key the middle is
    taken.
    """

    def __init__(self, source: Any, longest: int, names: Sequence[str] = ()):
        self.source, self.longest, self.names = source, longest, tuple(names)
        unknown = next((name for name in self.names if name not in NAMES), None)
        if unknown is not None:
            raise TypeError(f"data_kwargs names {unknown!r}; known: {', '.join(NAMES)}")

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return name_of(self.source, index)

    def text(self, index: int) -> str:
        return self.keyed(index, None)["text"]

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        at = f"sample {index}"
        found = self._routed(read_sample(self.source, index, key), at)
        if "wavs" not in found:
            raise TypeError(f"{at} has no sound; {KINDS}")
        if ("texts" in found) == ("raw_texts" in found):
            raise TypeError(f"{at} must have its caption once, as a string or as ids; {KINDS}")
        wav = self._cut(as_wav(found["wavs"], at), key)
        sample = {"wav": wav, "length": len(wav), "text": str(found.get("raw_texts", ""))}
        return sample | ({"tokens": as_ids(found["texts"], at)} if "texts" in found else {})

    def _cut(self, wav: Tensor, key: Key | None) -> Tensor:
        room = len(wav) - self.longest
        if room <= 0:
            return wav
        start = key.random("crop").random() if key is not None else 0.5
        first = round(start * room)
        return wav[first : first + self.longest].clone()

    def _routed(self, item: Any, at: str) -> dict[str, Any]:
        if isinstance(item, (tuple, list)) and self.names:
            if len(self.names) != len(item):
                raise TypeError(
                    f"data_kwargs names {len(self.names)} fields, but {at} has {len(item)}"
                )
            item = dict(zip(self.names, item))
        if isinstance(item, Mapping):
            pairs = [(by_name(str(name), value, at), value) for name, value in item.items()]
        elif isinstance(item, (tuple, list)):
            pairs = [(by_type(value, at), value) for value in item]
        else:
            raise TypeError(
                f"{at} is {type(item).__name__}; items must be dicts, or tuples of a sound and a "
                "caption"
            )
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TypeError(f"{at} has {twice} twice; {KINDS}: name the fields by data_kwargs")
        return dict(pairs)


def by_name(name: str, value: Any, at: str) -> str:
    """What a field is for; strings are never ids, whatever they are called."""
    if name not in NAMES:
        raise TypeError(f"{at} has {name!r}; known: {', '.join(NAMES)}")
    return "raw_texts" if name == "texts" and isinstance(value, str) else NAMES[name]


def by_type(value: Any, at: str) -> str:
    """What a field without a name must be."""
    if isinstance(value, str):
        return "raw_texts"
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor) and value.is_floating_point():
        return "wavs"
    if isinstance(value, Tensor) and value.dtype == torch.int64:
        return "texts"
    kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
    raise TypeError(f"{at} has a field of {kind}, which cannot be routed; {KINDS}")


def as_wav(value: Any, at: str) -> Tensor:
    """One channel (n,) of fractions."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"the sound of {at} is {kind}; give floating numbers between -1 and 1")
    wav = value.detach().float()
    if wav.ndim == 2 and wav.shape[0] <= wav.shape[1]:
        wav = wav.mean(0)
    if wav.ndim != 1 or not len(wav):
        shape = tuple(value.shape)
        raise TypeError(f"the sound of {at} has shape {shape}; give (n,), or (channels, n)")
    if not wav.isfinite().all():
        raise ValueError(f"the sound of {at} has samples that are not finite numbers")
    return wav


def as_ids(value: Any, at: str) -> Tensor:
    """(t,) whole numbers."""
    ids = torch.as_tensor(value)
    if ids.ndim != 1 or ids.is_floating_point():
        kind = f"{tuple(ids.shape)} of {ids.dtype}"
        raise TypeError(f"the texts of {at} are {kind}; give ids (t,), or strings as raw_texts")
    return ids.long()


class MuLaNTrainer(BaseTrainer):
    """Train a MuLaN on a folder of sounds with captions, on a data set, or on built-in music.

        mulan = MuLaN(dim=384)
        MuLaNTrainer(mulan, folder="songs", num_train_steps=20_000, batch_size=64).train()

    Beside what every trainer takes: the longest stretch of a sound as `data_max_length_seconds` or,
    in samples, `data_max_length`; `data_kwargs`, the names of a data set's fields where its items
    are tuples; `sounds` (all settings of the data) and `losses`.
    """

    name = "music/mulan"
    main = "mulan"

    def __init__(
        self,
        mulan: MuLaN,
        dataset: Any = None,
        *,
        folder: str | Path | None = None,
        data_max_length_seconds: float | None = None,
        data_max_length: int | None = None,
        data_kwargs: Sequence[str] = (),
        sounds: MusicDataConfig | None = None,
        losses: MusicLossConfig | None = None,
        **keywords: Any,
    ):
        if folder is not None and dataset is not None:
            raise RunError("give folder or dataset, and not both")
        shared = Keywords(**modern(keywords, shared_keywords()))
        if shared.val_dataset is not None and dataset is None:
            raise RunError("val_dataset goes with dataset; a folder holds out its valid_frac")
        longest = data_max_length_seconds, data_max_length
        sounds = _settings(sounds, longest, mulan.config.rate, shared.valid_frac)
        self.sets = None if dataset is None else _own_sets(dataset, shared, sounds, data_kwargs)
        place = resolved(folder)
        train = self.sets["train"] if self.sets else open_data(place, sounds, "train", shared.seed)
        recipe = shared.recipe(
            len(train),
            MuLaNRecipe,
            model=mulan.config,
            sounds=sounds,
            losses=losses or MusicLossConfig(),
            mulan=shared.optimiser(),
            data="python:dataset" if self.sets else place,
        )
        super().__init__(mulan, shared, recipe)

    def task(self, recipe: MuLaNRecipe) -> MuLaNTask:
        return MuLaNTask(recipe, self._model(), self.sets)

    def embed_audio(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of sounds (b, n), of length one, by the averaged weights."""
        return self._averaged().embed_audio(wavs, lengths)

    def embed_text(self, texts: str | Sequence[str]) -> Tensor:
        """(b, l) embeddings of texts, of length one, by the averaged weights."""
        return self._averaged().embed_text(texts)

    @torch.no_grad()
    def get_audio_latents(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The model's own, by the averaged weights."""
        return self._averaged().get_audio_latents(wavs, lengths)

    @torch.no_grad()
    def get_text_latents(
        self, texts: Tensor | None = None, raw_texts: Sequence[str] | None = None
    ) -> Tensor:
        """The model's own, of ids or of strings, by the averaged weights."""
        return self._averaged().get_text_latents(texts, raw_texts)

    def quantize_latents(self, latents: Tensor) -> Tensor:
        """(b, depth) codes of embeddings, by the averaged weights."""
        model = self._averaged()
        return model.quantize_latents(latents.to(model.log_temperature.device))

    def _averaged(self) -> MuLaN:
        self.averaged_model()
        return self._model()

    def _model(self) -> MuLaN:
        assert isinstance(self.model, MuLaN)
        return self.model


def _settings(
    sounds: MusicDataConfig | None,
    longest: tuple[float | None, int | None],
    rate: int,
    valid_fraction: float,
) -> MusicDataConfig:
    """As they are given, or by the longest sound in seconds or in samples."""
    seconds, samples = longest
    if sum(value is not None for value in (seconds, samples, sounds)) > 1:
        raise RunError("give one of data_max_length_seconds, data_max_length and sounds")
    if sounds is not None:
        return sounds
    if seconds is None:
        seconds = MusicDataConfig.seconds if samples is None else samples / rate
    least = min(seconds, MusicDataConfig.min_seconds)
    return MusicDataConfig(
        rate=rate, seconds=seconds, min_seconds=least, valid_fraction=valid_fraction
    )


def _own_sets(
    dataset: Any, shared: Keywords, sounds: MusicDataConfig, names: Sequence[str]
) -> dict[str, Any]:
    names = tuple(names) or tuple(getattr(dataset, "data_kwargs", ()))
    longest = round(sounds.seconds * sounds.rate)
    sides = {"train": dataset, "valid": shared.val_dataset}
    if shared.val_dataset is None:
        sides = split(dataset, shared.valid_frac, shared.seed)
    return {
        name: None if side is None else AsSounds(side, longest, names)
        for name, side in sides.items()
    }

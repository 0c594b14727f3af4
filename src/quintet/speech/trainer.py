"""VoiceBoxTrainer: the speech room for Python users."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.config import resolved
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.spellings import renamed
from quintet.engine.stream import name_of, read_sample
from quintet.engine.trainer import BaseTrainer, Keywords, modern, shared_keywords, split
from quintet.media.audio import LOUDEST, SILENCE
from quintet.speech.config import (
    SpeakingConfig,
    SpeechDataConfig,
    VoiceBoxLossConfig,
    VoiceBoxRecipe,
)
from quintet.speech.data import Fit, frame_plan, open_data
from quintet.speech.model import VoiceBox
from quintet.speech.task import VoiceBoxTask

NAMES = {
    "audio": "audio",
    "wav": "audio",
    "wave": "audio",
    "latents": "audio",
    "text": "text",
    "texts": "text",
    "transcript": "text",
    "ids": "ids",
    "phoneme_ids": "ids",
    "semantic_token_ids": "ids",
}


class AsSpeech:
    """A data set of the user's: recordings alone, tuples of a recording and its text, or dicts.

    A recording is a sound (n,) or (channels, n), which are mixed to one, or latents (t, c). Its
    text is a string, or ids (m,) of the user's own; without one the model learns to speak on.
    """

    def __init__(self, source: Any, fit: Fit):
        self.source, self.fit = source, fit

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return name_of(self.source, index)

    def size(self, index: int) -> tuple[int, int]:
        """Frames and characters; of what cannot be used, as large as can be."""
        try:
            item = self.keyed(index, None)
        except ValueError:
            return self.fit.count * self.fit.frames, self.fit.count * self.fit.tokens
        ids = item["ids"] if "ids" in item else self.fit.ids(item["text"])
        given = self.fit.model.text == "given"
        return self.fit.frames_of(len(item["audio"])), 0 if given else len(ids)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        at = f"sample {index}"
        found = routed(read_sample(self.source, index, key), at)
        if "audio" not in found:
            raise TypeError(f"{at} has no audio; give a sound, (sound, text), or a dict of them")
        model = self.fit.model
        audio = as_audio(found["audio"], model.bins if self.fit.latents else None, at)
        if not self.fit.latents and len(audio) > self.fit.config.max_seconds * model.rate:
            raise ValueError(
                f"{at} lasts {len(audio) / model.rate:.1f} s, more than max_seconds ="
                f" {self.fit.config.max_seconds:g}; cut it, or raise max_seconds"
            )
        sample: dict[str, Any] = {"audio": audio, "text": None}
        if "ids" in found:
            frames = self.fit.frames_of(len(audio)) if model.text == "given" else None
            return sample | {"ids": as_ids(found["ids"], frames, at)}
        if model.text == "given":
            raise TypeError(f"{at} has no ids, but this model takes one for each frame")
        if found.get("text") is not None:
            sample["text"] = self.fit.check(len(audio), str(found["text"]))
        return sample


def routed(item: Any, at: str) -> dict[str, Any]:
    """The fields of an item, by what they are for."""
    if isinstance(item, Mapping):
        unknown = next((name for name in item if name not in NAMES), None)
        if unknown is not None:
            raise TypeError(f"{at} has {unknown!r}; known: {', '.join(NAMES)}")
        return {NAMES[name]: value for name, value in item.items()}
    values = list(item) if isinstance(item, (tuple, list)) else [item]
    if len(values) > 2:
        raise TypeError(f"{at} has {len(values)} fields; give a sound and its text, or a dict")
    found: dict[str, Any] = {"audio": values[0]}
    if len(values) == 2:
        found["text" if isinstance(values[1], str) else "ids"] = values[1]
    return found


def as_audio(value: Any, width: int | None, at: str) -> Tensor:
    """(n,) fractions, or (t, width) latents."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"the audio of {at} is {kind}; give floating numbers")
    audio, shape = value.detach().float(), tuple(value.shape)
    if width is None and audio.ndim == 2 and audio.shape[0] <= audio.shape[1]:
        audio = audio.mean(0)
    fits = audio.ndim == 1 if width is None else audio.ndim == 2 and audio.shape[1] == width
    if not fits or not len(audio):
        wanted = "(n,) or (channels, n)" if width is None else f"(t, {width})"
        raise TypeError(f"the audio of {at} has shape {shape}; give {wanted}")
    reach = audio.abs().max().item()
    if not reach <= LOUDEST and (width is None or not np.isfinite(reach)):
        raise ValueError(f"the audio of {at} reaches {reach:.3g}, where 1 is full scale")
    if width is None and reach < SILENCE:
        raise ValueError(f"the audio of {at} is silent")
    return audio


def as_ids(value: Any, frames: int | None, at: str) -> Tensor:
    """(m,) whole numbers, as many as there are `frames` where that is given."""
    ids = torch.as_tensor(value)
    if ids.ndim != 1 or ids.is_floating_point() or not len(ids):
        raise TypeError(
            f"the ids of {at} are {tuple(ids.shape)} of {ids.dtype}; give (m,) whole numbers"
        )
    if frames is not None and len(ids) != frames:
        raise TypeError(f"{at} has {len(ids)} ids and {frames} frames; give one for each frame")
    return ids.long()


class VoiceBoxTrainer(BaseTrainer):
    """Train a VoiceBox on a folder of recordings with texts, a data set, or built-in speech.

        voicebox = VoiceBox(dim=512)
        trainer = VoiceBoxTrainer(voicebox, folder="readings", num_train_steps=100_000)
        trainer.train()
        (sound,) = trainer.generate(texts=["good morning"], steps=16)

    Beside what every trainer takes: `recordings` (all settings of the data), `losses` and
    `speaking`. A batch has as many frames as `batch_size` recordings of the longest kind; of
    shorter ones there are more in it.
    """

    name = "speech/voicebox"
    main = "voicebox"

    @renamed(cfm_wrapper="voicebox")
    def __init__(
        self,
        voicebox: VoiceBox,
        dataset: Any = None,
        *,
        folder: str | Path | None = None,
        recordings: SpeechDataConfig | None = None,
        losses: VoiceBoxLossConfig | None = None,
        speaking: SpeakingConfig | None = None,
        **keywords: Any,
    ):
        if folder is not None and dataset is not None:
            raise RunError("give folder or dataset, and not both")
        settings: dict[str, Any] = {"max_grad_norm": 0.5, "warmup_steps": 1000}
        shared = Keywords(**settings | modern(keywords, shared_keywords()))
        if shared.val_dataset is not None and dataset is None:
            raise RunError("val_dataset goes with dataset; a folder holds out its valid_frac")
        config = voicebox.config
        recordings = recordings or SpeechDataConfig(
            rate=config.rate, valid_fraction=shared.valid_frac
        )
        fit = Fit(recordings, config)
        self.sets = None if dataset is None else _own_sets(dataset, shared, fit)
        place = resolved(folder)
        train = self.sets["train"] if self.sets else open_data(place, fit, "train", shared.seed)
        recipe = shared.recipe(
            _full_size(train, fit, shared),
            VoiceBoxRecipe,
            model=config,
            recordings=recordings,
            losses=losses or VoiceBoxLossConfig(),
            speaking=speaking or SpeakingConfig(),
            voicebox=shared.optimiser(),
            data="python:dataset" if self.sets else place,
        )
        super().__init__(voicebox, shared, recipe)

    def task(self, recipe: VoiceBoxRecipe) -> VoiceBoxTask:
        return VoiceBoxTask(recipe, self._model(), self.sets)

    def generate(self, *, texts: str | Sequence[str] | None = None, **how: Any) -> list[Tensor]:
        """Speech by the averaged weights: what `VoiceBox.sample` takes, and gives."""
        self.averaged_model()
        return self._model().sample(texts=[texts] if isinstance(texts, str) else texts, **how)

    def _model(self) -> VoiceBox:
        assert isinstance(self.model, VoiceBox)
        return self.model


def _own_sets(dataset: Any, shared: Keywords, fit: Fit) -> dict[str, Any]:
    sides = {"train": dataset, "valid": shared.val_dataset}
    if shared.val_dataset is None:
        sides = split(dataset, shared.valid_frac, shared.seed)
    return {name: None if side is None else AsSpeech(side, fit) for name, side in sides.items()}


def _full_size(source: Any, fit: Fit, shared: Keywords) -> int:
    """How many recordings of the longest kind the data amounts to: what an epoch takes."""
    if shared.num_epochs is None:
        return len(source)
    plan = frame_plan(source, fit, shared.seed, shared.batch_size)
    return ceil(sum(plan.buckets) / plan.largest)

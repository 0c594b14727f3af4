"""Data of the vocoder: segments of the recordings of a folder, of speech or music, or of built-in
speech (shared/segments.py).
"""

from typing import Any

import torch

from quintet.engine.data.shared_rows import SharedRows
from quintet.engine.data.source import Source
from quintet.media.audio import to_16_bits
from quintet.media.splits import Builtin, Key, Split
from quintet.shared.segments import Recordings, Segments
from quintet.speech import voices
from quintet.speech.vocoder.config import VocoderRecipe

LONGEST = 4.0
"""Seconds of a built-in utterance, to which longer ones are cut."""


def segments(recipe: VocoderRecipe) -> Segments:
    return Segments(recipe.segment, recipe.valid_segment, recipe.model.sample_rate)


class BuiltinSegments(Builtin):
    """Segments of procedural speech."""

    what = "utterance"

    def __init__(self, recipe: VocoderRecipe, split: Split) -> None:
        super().__init__(recipe.recordings, split)
        self.segments = segments(recipe)
        self.longest = round(LONGEST * self.segments.rate)
        self.wavs = SharedRows([self.longest] * len(self))

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        wav = self.wavs.get(index)
        if wav is None:
            sound = voices.speak(voices.compose(self.number(index), self.seed), self.segments.rate)
            wav = self.wavs.put(index, to_16_bits(sound)[: self.longest])
        return {"audio": self.segments.cut(torch.tensor(wav), key)}


def open_data(recipe: VocoderRecipe, split: Split) -> Source:
    """Recordings of a folder, or built-in speech without one."""
    if recipe.data is None:
        return BuiltinSegments(recipe, split)
    return Recordings(recipe.data, recipe.recordings, split, recipe.seed, segments(recipe))

"""Data of an adopted codec: segments of the audio files of a folder, or of built-in music
(shared/segments.py)."""

from typing import Any

import torch

from quintet.engine.data.shared_rows import SharedRows
from quintet.engine.data.source import Source
from quintet.media.audio import to_16_bits
from quintet.media.splits import Builtin, Key, Split
from quintet.music import tunes
from quintet.music.adopt.config import CodecAdoptRecipe
from quintet.shared.segments import Recordings, Segments

LONGEST = 4.0
"""Seconds of a built-in tune."""


class BuiltinSegments(Builtin):
    """Segments of procedural music."""

    what = "tune"

    def __init__(self, recipe: CodecAdoptRecipe, split: Split, segments: Segments) -> None:
        super().__init__(recipe.sounds, split)
        self.segments = segments
        self.wavs = SharedRows([round(LONGEST * segments.rate)] * len(self))

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        wav = self.wavs.get(index)
        if wav is None:
            tune = tunes.compose(self.number(index), self.seed)
            wav = self.wavs.put(index, to_16_bits(tunes.play(tune, LONGEST, self.segments.rate)))
        audio = self.segments.cut(torch.tensor(wav), key)
        channels = self.segments.channels
        return {"audio": audio if channels == 1 else audio[:, None].expand(-1, channels)}


def open_data(recipe: CodecAdoptRecipe, split: Split, segments: Segments) -> Source:
    if recipe.data is None:
        return BuiltinSegments(recipe, split, segments)
    return Recordings(recipe.data, recipe.sounds, split, recipe.seed, segments)

"""Data of codecs: segments of the audio files of a folder, or of built-in music
(shared/segments.py)."""

from quintet.engine.data.source import Source
from quintet.media.splits import Split
from quintet.music import tunes
from quintet.music.config import CodingRecipe
from quintet.shared.segments import LONGEST, BuiltinSegments, Recordings, Segments


class BuiltinTunes(BuiltinSegments):
    what = "tune"

    def sound(self, number: int) -> tunes.Samples:
        return tunes.play(tunes.compose(number, self.seed), LONGEST, self.segments.rate)


def open_data(recipe: CodingRecipe, split: Split, segments: Segments) -> Source:
    if recipe.data is None:
        return BuiltinTunes(recipe.sounds, split, segments)
    return Recordings(recipe.data, recipe.sounds, split, recipe.seed, segments)

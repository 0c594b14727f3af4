"""Data of the vocoder: segments of the recordings of a folder, of speech or music, or of built-in
speech (shared/segments.py).
"""

from quintet.engine.data.source import Source
from quintet.media.splits import Split
from quintet.shared.segments import BuiltinSegments, Recordings, Segments
from quintet.speech import voices
from quintet.speech.vocoder.config import VocoderRecipe


def segments(recipe: VocoderRecipe) -> Segments:
    return Segments(recipe.segment, recipe.valid_segment, recipe.model.sample_rate)


class BuiltinUtterances(BuiltinSegments):
    what = "utterance"

    def sound(self, number: int) -> voices.Array:
        return voices.speak(voices.compose(number, self.seed), self.segments.rate)


def open_data(recipe: VocoderRecipe, split: Split) -> Source:
    """Recordings of a folder, or built-in speech without one."""
    if recipe.data is None:
        return BuiltinUtterances(recipe.recordings, split, segments(recipe))
    return Recordings(recipe.data, recipe.recordings, split, recipe.seed, segments(recipe))

"""Procedural speech with transcripts: a pure function of a number.

Invented words of consonant-vowel syllables, spoken by one of a few voices. Characters have exact
timestamps without gaps: a space is a pause.
"""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import exp2
from random import Random

import numpy as np

from quintet.speech.syllables import CONSONANTS, SOUNDS, VOWELS, Array, Floats, Throat, synthesise

SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
LOWEST_RATE = 8000


@dataclass(frozen=True)
class Speaker:
    """A voice: mean pitch in Hz, and vocal tract."""

    name: str
    pitch: float
    throat: Throat


SPEAKERS = (
    Speaker("bass", 92, Throat(0.92, 0.010, 350)),
    Speaker("baritone", 110, Throat(0.95, 0.030, 500)),
    Speaker("tenor", 132, Throat(0.98, 0.015, 700)),
    Speaker("countertenor", 158, Throat(1.01, 0.050, 600)),
    Speaker("contralto", 172, Throat(1.04, 0.015, 450)),
    Speaker("alto", 190, Throat(1.08, 0.040, 650)),
    Speaker("mezzo", 208, Throat(1.11, 0.020, 500)),
    Speaker("soprano", 228, Throat(1.14, 0.030, 800)),
)


@dataclass(frozen=True)
class Mark:
    """Characters with their start and end, in seconds unless a function says frames."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Utterance:
    """An utterance, independent of the sample rate."""

    text: str
    speaker: Speaker
    characters: tuple[Mark, ...]
    """Every character of the text, without gaps."""
    tune: tuple[tuple[float, float], ...]
    """Points (seconds, Hz) of the pitch contour, interpolated linearly in octaves."""
    loudness: float
    """Peak amplitude, below 1."""
    noise: int
    """Seed of the noise of breath and fricatives."""

    @property
    def seconds(self) -> float:
        return self.characters[-1].end

    @property
    def syllables(self) -> tuple[Mark, ...]:
        pairs = pairwise(self.characters)
        return tuple(Mark(a.text + b.text, a.start, b.end) for a, b in pairs if b.text in VOWELS)

    def pitch_at(self, times: Floats) -> Floats:
        """Pitch in Hz at each time, voiced or not."""
        seconds, hz = np.array(self.tune).T
        return np.exp2(np.interp(times, seconds, np.log2(hz)))


def compose(number: int, seed: int = 0) -> Utterance:
    random = _random(number, seed)
    return utter(_invent(random), random.choice(SPEAKERS), random)


def outline(number: int, seed: int = 0) -> tuple[str, float]:
    """Text and seconds of the utterance of this number, in half the time."""
    random = _random(number, seed)
    text = _invent(random)
    random.choice(SPEAKERS)
    return text, list(accumulate(_timing(text, random)))[-1]


def _random(number: int, seed: int) -> Random:
    digest = blake2b(f"voice/{seed}/{number}".encode(), digest_size=16).digest()
    return Random(int.from_bytes(digest, "big"))


def _invent(random: Random) -> str:
    """Words of one to three syllables, 5 to 14 syllables in all."""
    left = random.randint(5, 14)
    words: list[str] = []
    while left:
        count = min(left, random.choice((1, 2, 2, 3)))
        words.append("".join(random.choice(SYLLABLES) for _ in range(count)))
        left -= count
    return " ".join(words)


def utter(text: str, speaker: Speaker, random: Random) -> Utterance:
    """An utterance of a text of syllables in a given voice."""
    times = [0.0, *accumulate(_timing(text, random))]
    marks = tuple(Mark(name, *span) for name, span in zip(text, pairwise(times)))
    voice = _vary(speaker, random)
    return Utterance(
        text=text,
        speaker=voice,
        characters=marks,
        tune=_tune(marks, voice.pitch, random),
        loudness=random.uniform(0.5, 0.9),
        noise=random.getrandbits(63),
    )


def _timing(text: str, random: Random) -> list[float]:
    """Seconds of each character."""
    speed = random.uniform(0.85, 1.25)
    lengths = [SOUNDS[name].seconds * random.uniform(0.85, 1.2) / speed for name in text]
    lengths[-1] *= 1.4  # phrase-final lengthening
    return lengths


def _vary(speaker: Speaker, random: Random) -> Speaker:
    """The speaker with small random variations."""
    throat = Throat(
        scale=speaker.throat.scale * random.uniform(0.98, 1.02),
        breath=speaker.throat.breath * random.uniform(0.7, 1.4),
        tilt=speaker.throat.tilt * random.uniform(0.85, 1.2),
    )
    return Speaker(speaker.name, speaker.pitch * exp2(random.uniform(-0.1, 0.1)), throat)


def _tune(marks: tuple[Mark, ...], pitch: float, random: Random) -> tuple[tuple[float, float], ...]:
    """An accent on every vowel, with a declination of a quarter of an octave."""
    end = marks[-1].end
    middles = [(mark.start + mark.end) / 2 for mark in marks if mark.text in VOWELS]
    accents = [random.uniform(-0.2, 0.2) for _ in middles]
    return tuple((t, pitch * exp2(a + 0.125 - 0.25 * t / end)) for t, a in zip(middles, accents))


def speak(utterance: Utterance, rate: int) -> Array:
    """(n,) in -1..1, at a sample rate of `rate` Hz."""
    if rate < LOWEST_RATE:
        raise ValueError(f"rate must be {LOWEST_RATE} or more, not {rate}: speech needs 4 kHz")
    times = [0.0, *(mark.end for mark in utterance.characters)]
    throat, seed = utterance.speaker.throat, utterance.noise
    sound = synthesise(utterance.text, times, _pulse_times(utterance), throat, rate, seed)
    sound *= np.float32(utterance.loudness / max(sound.max(), -sound.min()))
    return sound


def _pulse_times(utterance: Utterance) -> Floats:
    """Times of the glottal pulses: where the integral of the pitch is an integer."""
    grid = np.arange(0, utterance.seconds, 0.001)
    cycles = np.cumsum(utterance.pitch_at(grid + 0.0005)) * 0.001
    return np.interp(np.arange(1, int(cycles[-1]) + 1), cycles, grid + 0.001)

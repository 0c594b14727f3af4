"""Procedural music with captions, as a pure function of a number.

A piece is a melody with a chord on every beat, so that tempo and scale are audible even where the
rhythm obscures the tempo and a short melody the scale. Even numbers are for training and odd ones
for validation. The two have disjoint combinations of attributes, and the first `HELD_OUT` odd
numbers have distinct combinations.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import chain, product
from math import floor
from random import Random

import numpy as np

from quintet.music.instruments import VOICES, Samples, hit, note

TEMPI = {"slow": (58, 72), "moderate": (98, 116), "fast": (160, 184)}
"""Beats per minute."""
SCALES = {
    "major": (0, 2, 4, 5, 7, 9, 11),
    "minor": (0, 2, 3, 5, 7, 8, 10),
    "pentatonic": (0, 2, 4, 7, 9),
    "whole-tone": (0, 2, 4, 6, 8, 10),
    "chromatic": tuple(range(12)),
}
CHORDS = {
    "major": (0, 4, 7, 12),
    "minor": (0, 3, 7, 10),
    "pentatonic": (0, 2, 7, 9),
    "whole-tone": (0, 4, 6, 8),
    "chromatic": (0, 1, 2, 11),
}
RHYTHMS = {
    "even": (0, 1 / 2),
    "dotted": (0, 3 / 4),
    "syncopated": (1 / 2,),
    "triplets": (0, 1 / 3, 2 / 3),
}
"""Note onsets within a beat."""
REGISTERS = {"low": 48, "middle": 62, "high": 76}
"""Lowest tonic as a MIDI pitch; `A4` is 69."""
DRUMS: dict[str, tuple[tuple[str, tuple[float, ...]], ...]] = {
    "none": (),
    "kick": (("kick", (0, 1, 2, 3)),),
    "shaker": (("shaker", tuple(k / 2 for k in range(8))),),
    "kit": (("kick", (0, 2)), ("snare", (1, 3)), ("shaker", tuple(k / 2 for k in range(8)))),
}
"""Drum hits, in beats of a bar of four."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "instrument": tuple(VOICES),
    "tempo": tuple(TEMPI),
    "scale": tuple(SCALES),
    "rhythm": tuple(RHYTHMS),
    "register": tuple(REGISTERS),
    "drums": tuple(DRUMS),
}
COMBINATIONS = tuple(product(*ATTRIBUTES.values()))
HELD_OUT = 2000
"""Combinations of attributes reserved for validation."""

PHRASES: dict[str, dict[str, tuple[str, ...]]] = {
    "instrument": {
        "piano": ("piano", "grand piano"),
        "guitar": ("guitar", "plucked guitar"),
        "strings": ("strings", "bowed strings"),
        "flute": ("flute", "breathy flute"),
        "organ": ("organ", "pipe organ"),
        "bells": ("bells", "ringing bells"),
        "trumpet": ("trumpet", "brassy trumpet"),
        "marimba": ("marimba", "wooden marimba"),
        "clarinet": ("clarinet", "reedy clarinet"),
        "synthesizer": ("synthesizer", "buzzing synthesizer"),
    },
    "tempo": {
        "slow": ("slow", "leisurely"),
        "moderate": ("moderate", "medium-paced"),
        "fast": ("fast", "rapid"),
    },
    "scale": {
        "major": ("major", "bright major"),
        "minor": ("minor", "sad minor"),
        "pentatonic": ("pentatonic", "five-note"),
        "whole-tone": ("whole-tone", "dreamy whole-tone"),
        "chromatic": ("chromatic", "half-step"),
    },
    "rhythm": {
        "even": ("in even notes", "evenly"),
        "dotted": ("in dotted notes", "long and short"),
        "syncopated": ("off the beat", "syncopated"),
        "triplets": ("in triplets", "three to the beat"),
    },
    "register": {
        "low": ("low-pitched", "deep"),
        "middle": ("mid-pitched", "mid-range"),
        "high": ("high-pitched", "treble"),
    },
    "drums": {
        "none": ("without drums", "no drums"),
        "kick": ("with a bass drum", "over a kick drum"),
        "shaker": ("with a shaker", "over a shaker"),
        "kit": ("with a drum kit", "over full drums"),
    },
}
"""Wordings of each value; the first is the default."""
TEMPLATES = (
    "{instrument}, {register} and {tempo}, a {scale} tune, {rhythm}, {drums}",
    "{register} {instrument}, {drums}: a {scale} piece, {tempo}, {rhythm}",
    "{tempo}, {rhythm}, {drums}: a {scale} line for {register} {instrument}",
)


@dataclass(frozen=True)
class Tune:
    """A piece, independent of sample rate and length."""

    instrument: str
    tempo: str
    scale: str
    rhythm: str
    register: str
    drums: str
    bpm: float
    tonic: float
    """MIDI pitch, slightly detuned."""
    volume: float
    upbeat: float
    """Start of the clip within the first bar, as a share of it."""
    seed: int
    """Seed of the melody."""
    captions: tuple[str, ...]
    """Paraphrases of one caption; the first is the plain one."""

    @property
    def values(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ATTRIBUTES}

    @property
    def labels(self) -> tuple[int, ...]:
        """Index of each attribute's value in `ATTRIBUTES`."""
        return tuple(ATTRIBUTES[name].index(value) for name, value in self.values.items())


# -- captions -------------------------------------------------------------------------------


def describe(values: Mapping[str, str]) -> str:
    """Caption of the given attributes; the others are not mentioned."""
    phrases = {name: PHRASES[name][value][0] for name, value in values.items()}
    adjectives = (phrases[name] for name in ("tempo", "scale") if name in phrases)
    melody = " ".join(("a", *adjectives, "melody"))
    if "instrument" in phrases:
        melody += f" on {phrases['instrument']}"
    details = (phrases[name] for name in ("register", "rhythm", "drums") if name in phrases)
    return ", ".join((melody, *details))


def longest_caption() -> int:
    """A bound of the bytes of captions, complete or partial."""
    values, longest = dict[str, str](), dict[str, str]()
    for name, phrases in PHRASES.items():
        values[name] = max(phrases, key=lambda value: len(phrases[value][0]))
        longest[name] = max(chain.from_iterable(phrases.values()), key=len)
    texts = [describe(values), *(template.format(**longest) for template in TEMPLATES)]
    return max(len(text.encode()) for text in texts)


def prompts(attribute: str) -> dict[str, str]:
    """Zero-shot prompt of each value of an attribute."""
    return {value: describe({attribute: value}) for value in ATTRIBUTES[attribute]}


def _captions(values: Mapping[str, str], random: Random) -> tuple[str, ...]:
    def phrases() -> dict[str, str]:
        return {name: random.choice(PHRASES[name][value]) for name, value in values.items()}

    return (describe(values), *(template.format(**phrases()) for template in TEMPLATES))


# -- composition -----------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _order(seed: int) -> tuple[int, ...]:
    order = list(range(len(COMBINATIONS)))
    Random(f"tunes/{seed}").shuffle(order)
    return tuple(order)


def _combination(number: int, seed: int) -> dict[str, str]:
    order = _order(seed)
    index, held_out = divmod(number, 2)
    index = index % HELD_OUT if held_out else HELD_OUT + index % (len(order) - HELD_OUT)
    return dict(zip(ATTRIBUTES, COMBINATIONS[order[index]]))


def compose(number: int, seed: int = 0) -> Tune:
    digest = blake2b(f"tune/{seed}/{number}".encode(), digest_size=16).digest()
    random = Random(int.from_bytes(digest, "big"))
    values = _combination(number, seed)
    return Tune(
        **values,
        bpm=random.uniform(*TEMPI[values["tempo"]]),
        tonic=REGISTERS[values["register"]] + random.randrange(5) + random.uniform(-0.1, 0.1),
        volume=random.uniform(0.35, 0.7),
        upbeat=random.random(),
        seed=random.getrandbits(64),
        captions=_captions(values, random),
    )


# -- synthesis -------------------------------------------------------------------------------


def _melody(tune: Tune, beats: int) -> Iterator[tuple[float, float, int]]:
    """Onset and length of each note in beats, and its pitch in semitones above the tonic.

    A random walk on the scale; a longer melody starts like a shorter one.
    """
    random = Random(tune.seed)
    scale = [*SCALES[tune.scale], 12]
    degree, onsets = random.randrange(len(scale)), RHYTHMS[tune.rhythm]
    for beat in range(beats):
        for onset, following in zip(onsets, (*onsets[1:], onsets[0] + 1)):
            yield beat + onset, following - onset, scale[degree]
            degree += random.choice((-2, -1, -1, -1, 1, 1, 1, 2))
            degree = abs(degree) if degree < len(scale) else 2 * (len(scale) - 1) - degree


def _hertz(semitone: float) -> float:
    return 440 * 2 ** ((semitone - 69) / 12)


class _Mix:
    """Sum of sounds that start at given beats, clipped to the output length."""

    def __init__(self, tune: Tune, seconds: float, rate: int) -> None:
        self.rate, self.beat = rate, 60 / tune.bpm
        self.upbeat = 4 * tune.upbeat
        self.beats = floor(seconds / self.beat + self.upbeat) + 1
        self.out = np.zeros(round(seconds * rate), np.float32)

    def add(self, beat: float, sound: Samples) -> None:
        at = round((beat - self.upbeat) * self.beat * self.rate)
        begin, end = max(at, 0), min(at + len(sound), len(self.out))
        if begin < end:
            self.out[begin:end] += sound[begin - at : end - at]


def _play_melody(tune: Tune, mix: _Mix) -> None:
    notes: dict[tuple[int, float], Samples] = {}
    for beat, length, pitch in _melody(tune, mix.beats):
        key = pitch, round(length, 3)
        if key not in notes:
            seconds = 0.6 * length * mix.beat  # gaps make the rhythm audible
            notes[key] = note(tune.instrument, _hertz(tune.tonic + pitch), seconds, mix.rate)
            notes[key] *= np.float32(0.2)
        mix.add(beat, notes[key])


def _play_chords(tune: Tune, mix: _Mix) -> None:
    pitches = (_hertz(tune.tonic + pitch) for pitch in CHORDS[tune.scale])
    notes = (note(tune.instrument, hertz, 0.5 * mix.beat, mix.rate) for hertz in pitches)
    chord = reduce(np.ndarray.__iadd__, notes)
    chord *= np.float32(0.08)
    for beat in range(mix.beats):
        mix.add(beat, chord)


def _play_drums(tune: Tune, mix: _Mix) -> None:
    for drum, onsets in DRUMS[tune.drums]:
        sound = np.float32(0.2) * hit(drum, mix.rate)
        for bar in range(0, mix.beats, 4):
            for onset in onsets:
                mix.add(bar + onset, sound)


def play(tune: Tune, seconds: float, rate: int) -> Samples:
    """The first seconds of the piece: float32 (n,) in [-1, 1]."""
    mix = _Mix(tune, seconds, rate)
    _play_melody(tune, mix)
    _play_chords(tune, mix)
    _play_drums(tune, mix)
    mix.out *= np.float32(tune.volume)
    return np.clip(mix.out, -1, 1, out=mix.out)

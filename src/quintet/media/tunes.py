"""Procedural music with captions: a pure function of a number.

A piece is a melody with a chord on every beat, so that tempo and scale are heard even where the
rhythm hides the one and the melody is short of notes for the other. Even numbers are for training
and odd ones are held out: each takes combinations of attributes of its own, so that what is held
out has never been heard, and the first `HELD_OUT` odd numbers have combinations that all differ.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from math import floor
from random import Random
from typing import NamedTuple

import numpy as np

from quintet.media.instruments import VOICES, Samples, hit, note

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
"""Where in a beat notes begin."""
REGISTERS = {"low": 48, "middle": 62, "high": 76}
"""The lowest tonic, in semitones; `A4` is 69."""
DRUMS: dict[str, tuple[tuple[str, tuple[float, ...]], ...]] = {
    "none": (),
    "kick": (("kick", (0, 1, 2, 3)),),
    "shaker": (("shaker", tuple(k / 2 for k in range(8))),),
    "kit": (("kick", (0, 2)), ("snare", (1, 3)), ("shaker", tuple(k / 2 for k in range(8)))),
}
"""Which drum is hit when, in beats of a bar of four."""

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
"""Combinations of attributes that are never played in training."""

WORDS: dict[str, dict[str, tuple[str, ...]]] = {
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
"""The words for a value; the first is used when nothing asks for variety."""
WORDINGS = (
    "{instrument}, {register} and {tempo}, a {scale} tune, {rhythm}, {drums}",
    "{register} {instrument}, {drums}: a {scale} piece, {tempo}, {rhythm}",
    "{tempo}, {rhythm}, {drums}: a {scale} line for {register} {instrument}",
)


@dataclass(frozen=True)
class Tune:
    """Everything that a piece is made of, at whatever rate it is played and however long."""

    instrument: str
    tempo: str
    scale: str
    rhythm: str
    register: str
    drums: str
    bpm: float
    tonic: float
    """In semitones, tuned a little up or down."""
    volume: float
    upbeat: float
    """The share of a bar that has passed when the piece is first heard."""
    seed: int
    """Of the melody."""
    captions: tuple[str, ...]
    """They say the same in other words; the first is in the plainest."""

    @property
    def caption(self) -> str:
        return self.captions[0]

    @property
    def values(self) -> dict[str, str]:
        """The attributes, by name."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    @property
    def labels(self) -> tuple[int, ...]:
        """The place of each attribute's value among those of `ATTRIBUTES`."""
        return tuple(ATTRIBUTES[name].index(value) for name, value in self.values.items())


# Words.


def describe(values: Mapping[str, str]) -> str:
    """A sentence that says these values, and nothing of the attributes that are left out."""
    said = {name: WORDS[name][value][0] for name, value in values.items()}
    melody = " ".join(("a", *(said[name] for name in ("tempo", "scale") if name in said), "melody"))
    if "instrument" in said:
        melody += f" on {said['instrument']}"
    rest = (said[name] for name in ("register", "rhythm", "drums") if name in said)
    return ", ".join((melody, *rest))


def phrases(attribute: str) -> dict[str, str]:
    """For each value of the attribute, a sentence that says it alone."""
    return {value: describe({attribute: value}) for value in ATTRIBUTES[attribute]}


def _captions(values: Mapping[str, str], random: Random) -> tuple[str, ...]:
    others: list[str] = []
    for wording in WORDINGS:
        words = {name: random.choice(WORDS[name][value]) for name, value in values.items()}
        others.append(wording.format(**words))
    return (describe(values), *others)


# What a piece is made of.


@lru_cache(maxsize=4)
def _order(seed: int) -> tuple[int, ...]:
    order = list(range(len(COMBINATIONS)))
    Random(f"tunes/{seed}").shuffle(order)
    return tuple(order)


def _combination(number: int, seed: int) -> dict[str, str]:
    order = _order(seed)
    turn, held_out = divmod(number, 2)
    place = turn % HELD_OUT if held_out else HELD_OUT + turn % (len(order) - HELD_OUT)
    return dict(zip(ATTRIBUTES, COMBINATIONS[order[place]]))


def compose(number: int, seed: int = 0) -> Tune:
    """The piece of this number."""
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


# What is heard.


class _Event(NamedTuple):
    """A note of the melody, in beats, its pitch in semitones over the tonic."""

    beat: float
    length: float
    pitch: int


def _melody(tune: Tune, beats: int) -> Iterator[_Event]:
    """A walk up and down the scale; a longer one begins as a shorter one does."""
    random = Random(tune.seed)
    ladder = [*SCALES[tune.scale], 12]
    step, onsets = random.randrange(len(ladder)), RHYTHMS[tune.rhythm]
    for beat in range(beats):
        for onset, following in zip(onsets, (*onsets[1:], onsets[0] + 1)):
            yield _Event(beat + onset, following - onset, ladder[step])
            step += random.choice((-2, -1, -1, -1, 1, 1, 1, 2))
            step = abs(step) if step < len(ladder) else 2 * (len(ladder) - 1) - step


def _hertz(semitone: float) -> float:
    return 440 * 2 ** ((semitone - 69) / 12)


class _Mix:
    """Sounds laid over each other; what lies outside is cut off."""

    def __init__(self, count: int) -> None:
        self.out = np.zeros(count, np.float32)

    def add(self, at: int, sound: Samples, level: float) -> None:
        begin, end = max(at, 0), min(at + len(sound), len(self.out))
        if begin < end:
            self.out[begin:end] += np.float32(level) * sound[begin - at : end - at]


def _play_melody(tune: Tune, mix: _Mix, beats: int, at: "_Clock") -> None:
    played: dict[tuple[int, float], Samples] = {}
    for event in _melody(tune, beats):
        kind = event.pitch, round(event.length, 3)
        if kind not in played:
            seconds = 0.6 * event.length * at.beat  # gaps make the rhythm plain
            played[kind] = note(tune.instrument, _hertz(tune.tonic + event.pitch), seconds, at.rate)
        mix.add(at(event.beat), played[kind], 0.2)


def _play_chords(tune: Tune, mix: _Mix, beats: int, at: "_Clock") -> None:
    pitches = (_hertz(tune.tonic + pitch) for pitch in CHORDS[tune.scale])
    notes = [note(tune.instrument, hertz, 0.5 * at.beat, at.rate) for hertz in pitches]
    chord = np.stack(notes).sum(axis=0)
    for beat in range(beats):
        mix.add(at(beat), chord, 0.08)


def _play_drums(tune: Tune, mix: _Mix, beats: int, at: "_Clock") -> None:
    for drum, places in DRUMS[tune.drums]:
        sound = hit(drum, at.rate)
        for bar in range(0, beats, 4):
            for place in places:
                mix.add(at(bar + place), sound, 0.2)


class _Clock(NamedTuple):
    """From beats to samples."""

    rate: int
    beat: float
    """Its length in seconds."""
    begin: float
    """The moment, in beats, at which the piece is first heard."""

    def __call__(self, beat: float) -> int:
        return round((beat - self.begin) * self.beat * self.rate)


def play(tune: Tune, seconds: float, rate: int) -> Samples:
    """The first seconds of the piece: float32 (n,), between -1 and 1."""
    mix = _Mix(round(seconds * rate))
    clock = _Clock(rate, 60 / tune.bpm, 4 * tune.upbeat)
    beats = floor(seconds / clock.beat + clock.begin) + 1
    _play_melody(tune, mix, beats, clock)
    _play_chords(tune, mix, beats, clock)
    _play_drums(tune, mix, beats, clock)
    mix.out *= np.float32(tune.volume)
    return np.clip(mix.out, -1, 1, out=mix.out)

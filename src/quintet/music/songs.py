"""Built-in songs of exact captions, for generators: the synthesis of `tunes.py`, and captions that
say instrument, key, tempo in beats per minute, rhythm and drums.

Captions of even numbers are for training and those of odd ones for validation; no caption is in
both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from random import Random
from types import MappingProxyType

from quintet.music import tunes
from quintet.music.instruments import VOICES, Samples

MODES = ("major", "minor")
KEYS = ("C", "C sharp", "D", "E flat", "E", "F", "F sharp", "G", "A flat", "A", "B flat", "B")
LOWEST = 60
"""MIDI pitch of the tonic of C."""
RHYTHMS = {"even": "even notes", "dotted": "dotted notes", "triplets": "triplets"}
DRUMS = {"none": "", "kick": "with a bass drum", "kit": "with a drum kit"}
TEMPI = range(72, 141, 4)
"""Beats per minute: less than twice the slowest, so that none sounds like the half of another."""


@dataclass(frozen=True)
class Kind:
    """Values that captions of one kind of songs may have."""

    instrument: tuple[str, ...]
    bpm: tuple[int, ...]
    mode: tuple[str, ...] = MODES
    key: tuple[str, ...] = KEYS
    rhythm: tuple[str, ...] = tuple(RHYTHMS)
    drums: tuple[str, ...] = tuple(DRUMS)
    upbeat: bool = True
    """Begins anywhere in a bar, and not on its first beat."""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "songs": Kind(tuple(VOICES), tuple(TEMPI)),
        "motifs": Kind(
            ("piano", "strings", "flute", "organ"),
            (72, 84, 96, 108, 120, 132),
            key=("C",),
            rhythm=("even",),
            drums=("none",),
            upbeat=False,
        ),
    }
)
"""`motifs` are few and quick to learn: one key, one rhythm, no drums, from the first beat on."""
HELD_OUT = 5
"""One caption of so many is for validation."""


@dataclass(frozen=True)
class Song:
    """What a caption says."""

    instrument: str
    bpm: int
    mode: str
    key: str
    rhythm: str
    drums: str

    @property
    def caption(self) -> str:
        start = f"{self.instrument} in {self.key} {self.mode} at {self.bpm} bpm"
        details = [RHYTHMS[self.rhythm], DRUMS[self.drums]]
        return ", ".join((start, *filter(None, details)))

    def tune(self, number: int, upbeat: float = 0.0) -> tunes.Tune:
        """A melody of it: by `number`, from a place in the first bar on."""
        digest = blake2b(f"song/{number}".encode(), digest_size=8).digest()
        return tunes.Tune(
            instrument=self.instrument,
            tempo="",
            scale=self.mode,
            rhythm=self.rhythm,
            register="middle",
            drums=self.drums,
            bpm=float(self.bpm),
            tonic=LOWEST + KEYS.index(self.key),
            volume=0.7,
            upbeat=upbeat,
            seed=int.from_bytes(digest, "big"),
            captions=(self.caption,),
        )


@lru_cache(maxsize=4)
def _captions(kind: str) -> tuple[list[Song], list[Song]]:
    """For training and validation, in an order that is the same everywhere."""
    values = KINDS[kind]
    every = product(
        values.instrument, values.bpm, values.mode, values.key, values.rhythm, values.drums
    )
    songs = [Song(*each) for each in every]
    Random(f"songs/{kind}").shuffle(songs)
    held_out = len(songs) // HELD_OUT
    return songs[held_out:], songs[:held_out]


def compose(number: int, kind: str) -> Song:
    index, held_out = divmod(number, 2)
    songs = _captions(kind)[held_out]
    return songs[index % len(songs)]


def play(number: int, kind: str, seconds: float, rate: int, place: float | None = None) -> Samples:
    """The song of a number: float32 (n,). Unless its kind has no upbeat, it begins at a `place` in
    the first bar, 0 to 1, by default one of its own."""
    if place is None:
        own = blake2b(f"upbeat/{number}".encode(), digest_size=4).digest()
        place = int.from_bytes(own, "big") / 2**32
    upbeat = place if KINDS[kind].upbeat else 0.0
    return tunes.play(compose(number, kind).tune(number, upbeat), seconds, rate)


@lru_cache(maxsize=1)
def _by_caption() -> dict[str, Song]:
    return {song.caption: song for kind in KINDS for part in _captions(kind) for song in part}


def song_of(caption: str) -> Song | None:
    """The song that a caption describes; None of a caption of another kind."""
    return _by_caption().get(caption)

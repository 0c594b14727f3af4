"""Whether a sound is as the caption of a built-in song says: instrument, tempo and mode.

    tempo       rises of the spectrum against the same delayed, for 69 to 143 beats a minute
    mode        energy of the pitch classes against those of the chords of every key
    instrument  cepstrum of the mean spectrum and shape of the envelope, by linear discriminants

References for mode and instrument are measured on songs of the built-in synthesis; nothing is
learned from generated sounds.
"""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt

from quintet.mel import mel_filterbank
from quintet.music import songs, tunes
from quintet.music.songs import MODES, Song

Array = npt.NDArray[np.floating]

FACETS = ("instrument", "tempo", "mode")
"""What is compared with a caption."""
RATE = 16_000
"""Sounds are compared at this rate."""
TOLERANCE = 0.04
"""Largest deviation of a tempo."""
SLOWEST, FASTEST = 69.0, 143.0
"""Beats per minute that are told apart; twice the slowest song would be the pulse of its notes."""
WINDOW, HOP = 1024, 128
"""Of onsets and timbres, in samples."""
LONG_WINDOW = 4096
"""Of pitches."""
LOWEST, HIGHEST = 58, 85
"""MIDI pitches that are looked for."""
MELS, CEPSTRUM = 48, 20
EXAMPLES, SECONDS = 30, 4.0
"""Songs per instrument, and their length, that the references are measured on."""
NOISE = 1e-3
"""Added to them, as copies by a codec are never clean."""
FLOOR = 1e-3
"""The least energy of bands and moments, relative to the loudest: copies differ below it."""
BLUR = 0.2
"""Deviation of the logarithm of a band in a copy, about."""


@dataclass(frozen=True)
class Reading:
    """What is heard in a sound."""

    instrument: str
    bpm: float
    mode: str


def read(sound: Array, rate: int, kind: str = "songs") -> Reading:
    """Of a sound (n,) whose instrument is one of a kind of songs."""
    from quintet.media.audio import resampled

    sound = np.asarray(sound, np.float32)
    if rate != RATE:
        sound = resampled(sound, rate, RATE)
    shortest = LONG_WINDOW + 4 * HOP
    sound = np.pad(sound, (0, max(0, shortest - len(sound))))
    return Reading(instrument_of(sound, kind), tempo_of(sound), mode_of(sound, kind))


def right(caption: str, sound: Array, rate: int, kind: str = "songs") -> dict[str, bool]:
    """Whether each of `FACETS` is that of the caption of a built-in song; nothing is of another."""
    song = songs.song_of(caption)
    if song is None:
        return dict.fromkeys(FACETS, False)
    heard = read(sound, rate, kind)
    values = (
        heard.instrument == song.instrument,
        abs(heard.bpm / song.bpm - 1) <= TOLERANCE,
        heard.mode == song.mode,
    )
    return dict(zip(FACETS, values))


def spectra(sound: Array, window: int, hop: int) -> Array:
    """(frames, window / 2 + 1): magnitudes."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, window)[::hop]
    return np.abs(np.fft.rfft(frames * np.hanning(window).astype(np.float32)))


# -- tempo ----------------------------------------------------------------------------------------


def onsets(sound: Array) -> Array:
    """(frames,): how much the spectrum rises, without its slow part."""
    levels = np.log1p(100 * spectra(sound, WINDOW, HOP) / WINDOW)
    rises = np.maximum(levels[2:] - levels[:-2], 0).sum(1)
    width = RATE // HOP // 2
    slow = np.convolve(np.pad(rises, width, "edge"), np.full(2 * width + 1, 1 / (2 * width + 1)))
    return rises - slow[2 * width : 2 * width + len(rises)]


def tempo_of(sound: Array) -> float:
    """Beats per minute between `SLOWEST` and `FASTEST`."""
    curve = onsets(sound)
    size = 2 * len(curve)
    power = np.abs(np.fft.rfft(curve, size)) ** 2
    alike = np.fft.irfft(power)[: len(curve)]
    alike = alike / np.arange(len(curve), 0, -1)  # the sum has fewer terms with a longer delay
    bpm = np.arange(SLOWEST, FASTEST, 0.25)
    periods = 60 / bpm * RATE / HOP
    scores = np.zeros(len(bpm))
    for multiple in (1, 2, 3, 4):
        delays = multiple * periods
        inside = delays < 0.8 * len(curve)
        scores += np.where(inside, np.interp(delays, np.arange(len(curve)), alike), 0)
    return float(bpm[np.argmax(scores)])


# -- mode -----------------------------------------------------------------------------------------


def pitch_classes(sound: Array) -> Array:
    """(12,) of unit norm: energy of the fundamentals, from C on."""
    levels = spectra(sound, LONG_WINDOW, LONG_WINDOW // 4)
    hertz = 440 * 2 ** ((np.arange(LOWEST, HIGHEST) - 69) / 12)
    bins = hertz * LONG_WINDOW / RATE
    columns = np.rint(bins[:, None] + np.array([-1, 0, 1])).astype(int)
    notes = levels[:, columns].max(2) ** 0.5  # (frames, pitches): partials matter less
    notes = np.maximum(notes - np.median(notes, 1, keepdims=True), 0).mean(0)
    classes = np.zeros(12)
    np.add.at(classes, np.arange(LOWEST, HIGHEST) % 12, notes)
    classes -= classes.min()
    return classes / max(float(np.linalg.norm(classes)), 1e-9)


@lru_cache(maxsize=2)
def profiles(kind: str) -> dict[str, Array]:
    """(12,) of each mode, from the tonic on: the mean over examples."""
    sums = {mode: np.zeros(12) for mode in MODES}
    for song, sound in _examples(kind):
        sums[song.mode] += np.roll(pitch_classes(sound), -songs.KEYS.index(song.key))
    return {mode: each / np.linalg.norm(each) for mode, each in sums.items()}


def mode_of(sound: Array, kind: str) -> str:
    """That of the key whose pitch classes are most like these."""
    classes = pitch_classes(sound)
    likeness = {
        mode: max(float(np.roll(profile, tonic) @ classes) for tonic in range(12))
        for mode, profile in profiles(kind).items()
    }
    return max(likeness, key=lambda mode: likeness[mode])


# -- instruments ----------------------------------------------------------------------------------


def timbre(sound: Array) -> Array:
    """Cepstrum of the mean spectrum of loud frames, and how the loudness moves."""
    bank = mel_filterbank(RATE, WINDOW, MELS, 60.0, RATE / 2)
    energies = (spectra(sound, WINDOW, HOP) ** 2) @ bank.T
    total = energies.sum(1)
    loud = total >= np.quantile(total, 0.5)
    mean = energies[loud].mean(0)
    logs = np.log(mean / max(float(mean.max()), 1e-9) + FLOOR)
    place = (np.arange(MELS) + 0.5) / MELS
    cosines = np.cos(np.pi * np.arange(1, CEPSTRUM + 1)[:, None] * place)
    level = np.log(total / max(float(total.max()), 1e-9) + FLOOR)
    steps = np.diff(level[::4])
    shape = np.quantile(level - level.mean(), (0.05, 0.25, 0.5, 0.75, 0.95))
    moves = np.quantile(steps, (0.05, 0.25, 0.5, 0.75, 0.95))
    return np.concatenate((cosines @ logs / (MELS / 2) ** 0.5, shape, moves))


@lru_cache(maxsize=2)
def _examples(kind: str) -> list[tuple[Song, Array]]:
    """Songs of every instrument of a kind, with other melodies than those of the data."""
    random, noise = Random(f"examples/{kind}"), np.random.default_rng(0)
    values = songs.KINDS[kind]
    examples: list[tuple[Song, Array]] = []
    for number in range(EXAMPLES * len(values.instrument)):
        own = {"instrument": values.instrument[number % len(values.instrument)]}
        others = ("bpm", "mode", "key", "rhythm", "drums")
        song = Song(**own, **{name: random.choice(getattr(values, name)) for name in others})
        wav = tunes.play(song.tune(-1 - number, random.random()), SECONDS, RATE)
        wav += NOISE * noise.standard_normal(len(wav), np.float32)
        examples.append((song, wav))
    return examples


@lru_cache(maxsize=2)
def discriminants(kind: str) -> tuple[Array, Array, tuple[str, ...]]:
    """Weights (features, classes), offsets and instruments: of equal covariances, shrunk a little.
    Rhythm and drums are classes too, since they colour the mean spectrum."""
    rows: dict[tuple[str, str, str], list[Array]] = {}
    for song, sound in _examples(kind):
        rows.setdefault((song.instrument, song.rhythm, song.drums), []).append(timbre(sound))
    means = np.array([np.mean(each, 0) for each in rows.values()])
    within = np.concatenate([np.array(each) - np.mean(each, 0) for each in rows.values()])
    covariance = within.T @ within / len(within)
    covariance += 0.1 * np.diag(np.diag(covariance)) + BLUR**2 * np.eye(len(covariance))
    weights = np.linalg.solve(covariance, means.T)
    return weights, -0.5 * (means.T * weights).sum(0), tuple(name for name, *_ in rows)


def instrument_of(sound: Array, kind: str) -> str:
    weights, offsets, names = discriminants(kind)
    return names[int(np.argmax(timbre(sound) @ weights + offsets))]

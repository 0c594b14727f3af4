"""Source-filter synthesis of consonants and vowels.

Glottal pulses and breath pass through moving formants; fricatives and bursts pass through a filter
of their own. Both filters are constant within a window of 20 ms; windows overlap by half. Shapes: t
windows, f frequencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf, pi

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Spectrum = npt.NDArray[np.complex64]
Point = tuple[float, float]
Formants = tuple[float, float, float]

WINDOW = 0.02
RESPONSE = 0.02
"""Seconds of the impulse response after a window."""
GRID = 10
"""Resolution of formant frequencies in Hz."""
HIGHEST = 6500
UPPER = (3600.0, 4500.0)
"""Fixed upper formants, in Hz."""
FLOOR = 1e-3
"""Amplitude of the noise floor, against digital silence."""
SHORT = 0.008
"""Attack and release time in seconds."""
GLIDE = 0.05
"""Formant transition from a consonant to its vowel, in seconds."""


@dataclass(frozen=True)
class Sound:
    """One character: formants and sources."""

    formants: Formants
    seconds: float
    voice: float = 0.0
    """Amplitude of the pulses."""
    shade: tuple[float, float] = (0.0, 0.0)
    """Low-pass cutoff and anti-formant of the voice in Hz; 0: none."""
    hiss: float = 0.0
    """Amplitude of sustained noise (fricatives)."""
    burst: float = 0.0
    """Amplitude of the release burst (plosives)."""
    breath: float = 0.0
    """Amplitude of aspiration between release and vowel."""
    noise: tuple[float, float] = (0.0, 1.0)
    """Centre and width of the noise spectrum in Hz."""


SOUNDS = {
    " ": Sound((500, 1500, 2500), 0.09),
    "a": Sound((820, 1300, 2650), 0.15, voice=1.0),
    "e": Sound((520, 1950, 2650), 0.15, voice=1.0),
    "i": Sound((280, 2450, 3150), 0.14, voice=1.0),
    "o": Sound((540, 850, 2450), 0.15, voice=1.0),
    "u": Sound((310, 1350, 2250), 0.14, voice=1.0),
    "b": Sound((200, 800, 2200), 0.08, voice=0.5, shade=(300, 0), burst=0.4, noise=(700, 500)),
    "d": Sound((200, 1800, 2700), 0.08, voice=0.5, shade=(300, 0), burst=0.6, noise=(4200, 900)),
    "t": Sound((300, 1800, 2700), 0.1, burst=1.2, breath=0.25, noise=(5200, 1200)),
    "k": Sound((300, 1900, 2200), 0.1, burst=1.2, breath=0.3, noise=(2000, 350)),
    "m": Sound((270, 1000, 2100), 0.08, voice=0.7, shade=(500, 850)),
    "n": Sound((270, 1500, 2500), 0.08, voice=0.7, shade=(800, 1900)),
    "s": Sound((300, 1700, 2600), 0.11, hiss=0.6, noise=(7000, 1400)),
    "f": Sound((300, 900, 2200), 0.11, hiss=0.25, noise=(3000, 6000)),
    "l": Sound((370, 1150, 2900), 0.08, voice=0.8, shade=(1500, 2000)),
    "r": Sound((400, 1150, 1550), 0.08, voice=0.8),
}
NUMBERS = {name: number for number, name in enumerate(SOUNDS)}
VOWELS = "aeiou"
CONSONANTS = "".join(name for name in SOUNDS if name not in " " + VOWELS)


@dataclass(frozen=True)
class Throat:
    """Vocal tract of a speaker."""

    scale: float
    """Scale of the formants; larger for a shorter vocal tract."""
    breath: float
    """Breathiness of the voice (amplitude)."""
    tilt: float
    """Cutoff of the spectral tilt in Hz."""


class Track:
    """Piecewise linear parameter track through points (seconds, value)."""

    def __init__(self, *points: Point) -> None:
        self.points = list(points)

    def through(self, *points: Point) -> None:
        self.points += points

    def at(self, times: Floats) -> Floats:
        seconds, values = np.array(self.points).T
        return np.interp(times, seconds, values)

    def scale(self, sound: Array, rate: int) -> Array:
        """A sound times the track; cheap where that is constant, which it mostly is."""
        scaled = np.zeros_like(sound)
        grid = _grid(rate, len(sound))
        points = [*self.points, (inf, self.points[-1][1])]
        starts = grid.searchsorted([second for second, _ in points]).tolist()
        for (start, left), (end, right), *span in zip(points, points[1:], starts, starts[1:]):
            some = slice(*span)
            if left != right:
                slope = (right - left) / (end - start)
                track = (slope * (grid[some] - start) + left).astype(np.float32)
                np.multiply(sound[some], track, out=scaled[some])
            elif left:
                np.multiply(sound[some], np.float32(left), out=scaled[some])
        return scaled


class Score:
    """Tracks of an utterance: formants in Hz, and amplitudes."""

    def __init__(self, text: str, times: Sequence[float], throat: Throat) -> None:
        self.formants = (Track(), Track(), Track())
        self.voice, self.breath, self.noise = (Track((0.0, 0.0)) for _ in range(3))
        for index, (name, (start, end)) in enumerate(zip(text, pairwise(times))):
            # A pause keeps the formants of the character before it.
            formants = SOUNDS[name if name != " " else text[index - 1]].formants
            self.move(formants, name, start, end)
            self.play(SOUNDS[name], start, end, throat)

    def move(self, formants: Formants, name: str, start: float, end: float) -> None:
        arrive = start + min(GLIDE if name in VOWELS else SHORT, 0.5 * (end - start))
        for line, hz in zip(self.formants, formants):
            line.through((arrive, hz), (end, hz))

    def play(self, sound: Sound, start: float, end: float, throat: Throat) -> None:
        soon, release = start + SHORT, end - (0.035 if sound.breath else 0.02)
        self.voice.through((soon, sound.voice), (end, sound.voice))
        calm = throat.breath * sound.voice
        self.breath.through((soon, calm), (release, calm))
        if sound.breath:
            self.breath.through((release + SHORT, sound.breath), (end, sound.breath))
        if sound.hiss:
            held = (start + 0.03, sound.hiss), (end - 0.02, sound.hiss)
            self.noise.through((start, 0), *held, (end, 0))
        if sound.burst:
            peak = release + 0.002
            self.noise.through((release, 0), (peak, sound.burst), (peak + 0.015, 0))


def _size(rate: int) -> tuple[int, int]:
    """Hop and FFT size in samples."""
    hop = round(rate * WINDOW / 2)
    return hop, 1 << (2 * hop + round(rate * RESPONSE) - 1).bit_length()


@lru_cache(maxsize=8)
def _seconds(rate: int, seconds: int) -> Floats:
    return np.arange(seconds * rate) / rate


def _grid(rate: int, count: int) -> Floats:
    """Times of the first samples, in seconds; made for lengths in steps of 8 seconds."""
    return _seconds(rate, 8 * -(-count // (8 * rate)))[:count]


@lru_cache(maxsize=8)
def _resonances(rate: int) -> Spectrum:
    """(HIGHEST / GRID, f): response of a pole at each grid frequency; 1 at 0 and near Nyquist."""
    hz = np.arange(0, HIGHEST, GRID)[:, None].astype(float)
    width = 50 + 0.04 * hz + (hz / 800) ** 2
    radius, angle = np.exp(-pi * width / rate), 2 * pi * hz / rate
    size = _size(rate)[1]
    delay = np.exp(-2j * pi * np.arange(size // 2 + 1) / size)
    first, second = -2 * radius * np.cos(angle), radius**2
    response = (1 + first + second) / (1 + first * delay + second * delay**2)
    response[(hz[:, 0] == 0) | (hz[:, 0] > 0.49 * rate)] = 1
    return response.astype(np.complex64)


@lru_cache(maxsize=8)
def _colours(rate: int) -> tuple[Array, Array]:
    """(characters, f), twice: filters of voice and noise by character."""
    hz = np.arange(_size(rate)[1] // 2 + 1) * (rate / _size(rate)[1])
    voices: list[Floats] = []
    noises: list[Floats] = []
    for sound in SOUNDS.values():
        muffle, notch = sound.shade
        voice = 1 / (1 + (hz / (muffle or np.inf)) ** 2)
        if notch:
            voice = voice * (1 - 0.95 * np.exp(-(((hz - notch) / 250) ** 2)))
        voices.append(voice)
        noises.append(np.exp(-(((hz - sound.noise[0]) / sound.noise[1]) ** 2)))
    return np.array(voices, np.float32), np.array(noises, np.float32)


def _voice_filters(
    score: Score, throat: Throat, rate: int, at: Floats, sounds: npt.NDArray[np.intp]
) -> Spectrum:
    """(t, f): filters of the voice in windows at these times, in these sounds (by `NUMBERS`)."""
    size, table = _size(rate)[1], _resonances(rate)
    rows = [np.rint(throat.scale / GRID * line.at(at)).astype(int) for line in score.formants]
    settings = np.stack([*rows, sounds])
    # Consecutive windows often have the same filter: it is computed once.
    changes = (settings[:, 1:] != settings[:, :-1]).any(0)
    first, second, third, which = settings[:, np.concatenate(([True], changes))]
    hz = np.arange(size // 2 + 1) * (rate / size)
    source = hz / (hz + 60) / (1 + hz / throat.tilt)
    for upper in UPPER:
        source = source * table[round(upper * throat.scale / GRID)]
    mouth = table[first]
    mouth *= table[second]
    mouth *= table[third]
    mouth *= source.astype(np.complex64)
    mouth *= _colours(rate)[0][which]
    return mouth[np.concatenate(([0], np.cumsum(changes)))]


def _pulses(times: Floats, heights: Array, rate: int, count: int) -> Array:
    """Band-limited pulses at fractional sample positions."""
    taps = np.arange(-3, 5)
    whole = np.floor(times * rate).astype(int)
    offset = taps - (times * rate - whole)[:, None]
    shape = np.sinc(offset) * np.cos(pi / 9 * offset) ** 2
    places = (whole[:, None] + taps).clip(0, count - 1)
    weights = shape * heights[:, None]
    return np.bincount(places.ravel(), weights.ravel(), count).astype(np.float32)


def synthesise(
    text: str,
    times: Sequence[float],
    pulses: Floats,
    throat: Throat,
    rate: int,
    seed: int,
) -> Array:
    """(n,): the characters at their times, with glottal pulses at theirs; not normalised."""
    hop, size = _size(rate)
    count = round(times[-1] * rate)
    windows = count // hop + 2
    score = Score(text, times, throat)
    white = np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
    heights = score.voice.at(pulses).astype(np.float32)
    voiced = _pulses(pulses, heights * np.sqrt(rate / 60), rate, count)
    voiced += score.breath.scale(white, rate)
    noise = score.noise.scale(white, rate)
    at = np.arange(windows, dtype=np.float64) * (hop / rate)
    order = np.array([NUMBERS[name] for name in text])
    sounds = order[np.searchsorted(times[1:-1], at, side="right")]
    spectra = _voice_filters(score, throat, rate, at, sounds)
    spectra *= _spectra(_windows(voiced, windows, hop), size)
    hissing = _windows(noise, windows, hop)
    some = np.flatnonzero(hissing.any(1))
    if len(some):  # MKL transforms no empty batch
        spectra[some] += _spectra(hissing[some], size) * _colours(rate)[1][sounds[some]]
    pieces = torch.fft.irfft(torch.from_numpy(spectra), size).numpy()
    audio = _overlap(pieces, hop)[hop : hop + count]
    fade = min(count, round(rate * WINDOW))
    audio[count - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    audio += np.float32(FLOOR) * white
    return audio


def _windows(sound: Array, count: int, hop: int) -> Array:
    """(t, 2 hop): a view."""
    padded = np.zeros((count + 1) * hop, np.float32)
    padded[hop : hop + len(sound)] = sound
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * hop)[::hop]


@lru_cache(maxsize=8)
def _hann(hop: int) -> Array:
    return np.sin(pi * (np.arange(2 * hop) + 0.5) / (2 * hop)).astype(np.float32) ** 2


def _spectra(windows: Array, size: int) -> Spectrum:
    pieces = np.zeros((len(windows), size), np.float32)
    length = windows.shape[1]
    np.multiply(windows, _hann(length // 2), out=pieces[:, :length])
    return torch.fft.rfft(torch.from_numpy(pieces)).numpy()


def _overlap(pieces: Array, hop: int) -> Array:
    """Overlap-add of (t, size) with this hop."""
    windows, size = pieces.shape
    parts = -(-size // hop)
    total = np.zeros((windows + parts, hop), np.float32)
    for part in range(parts):
        slab = pieces[:, part * hop : (part + 1) * hop]
        total[part : part + windows, : slab.shape[1]] += slab
    return total.ravel()

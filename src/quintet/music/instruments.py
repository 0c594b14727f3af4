"""Wavetable synthesis of ten instruments and three drums.

A table holds `CYCLES` periods of the fundamental, to allow inharmonic partials such as those of
bells. A note crossfades from a bright table to a dark one under the envelope of its instrument.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, pi

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]
Partials = tuple[tuple[float, float], ...]
"""Multiples of the fundamental, each with its amplitude."""

CYCLES = 16
PERIOD = 1024
MAX_SECONDS = 1.6
"""Maximum length of a note in seconds."""


def _harmonics(*amplitudes: float) -> Partials:
    return tuple((float(k), a) for k, a in enumerate(amplitudes, 1) if a)


def _falling(count: int, power: float, odd: bool = False) -> Partials:
    return tuple((float(k), k**-power) for k in range(1, count + 1, 2 if odd else 1))


@dataclass(frozen=True, kw_only=True)
class Voice:
    """Synthesis parameters of an instrument; times in seconds."""

    bright: Partials
    """Spectrum at the onset."""
    dark: Partials = ()
    """Spectrum after the crossfade (for a trumpet the brighter one); without one, the same."""
    mellow: float = inf
    """Time constant of the crossfade."""
    attack: float = 0.004
    decay: float = inf
    """Time constant of the decay; infinite for sustained instruments."""
    release: float = 0.05
    """Fade-out after the end of the note."""
    vibrato: float = 0.0
    """Relative pitch modulation."""
    tremolo: float = 0.0
    """Relative amplitude modulation."""
    breath: float = 0.0
    """Noise level relative to the tone."""


VOICES: dict[str, Voice] = {
    "piano": Voice(
        bright=_falling(12, 0.9),
        dark=_harmonics(1, 0.35, 0.1, 0.03),
        mellow=0.35,
        decay=0.6,
        release=0.2,
    ),
    "guitar": Voice(
        bright=_harmonics(0.5, 1, 0.9, 0.2, 0.6, 0.5, 0.1, 0.4, 0.3, 0.1),
        dark=_harmonics(1, 0.5, 0.1),
        mellow=0.12,
        attack=0.001,
        decay=0.3,
        release=0.15,
    ),
    "strings": Voice(
        bright=_falling(20, 1.0),
        dark=_falling(20, 0.8),
        attack=0.06,
        release=0.08,
        vibrato=0.012,
    ),
    "flute": Voice(
        bright=_harmonics(1, 0.12, 0.04),
        attack=0.05,
        release=0.05,
        vibrato=0.004,
        tremolo=0.15,
        breath=0.25,
    ),
    "organ": Voice(
        bright=((0.5, 0.6), (1, 1), (1.5, 0.4), (2, 0.8), (3, 0.5), (4, 0.6), (6, 0.3), (8, 0.5)),
        attack=0.01,
        release=0.03,
    ),
    "bells": Voice(
        bright=((1, 0.6), (2.0, 0.3), (2.75, 1), (5.4375, 0.7), (8.9375, 0.4)),
        dark=((1, 1), (2.0, 0.3), (2.75, 0.4)),
        mellow=0.5,
        attack=0.001,
        decay=0.5,
        release=0.4,
    ),
    "trumpet": Voice(
        bright=_harmonics(1, 0.8, 0.3, 0.1),
        dark=_harmonics(0.5, 0.8, 1, 1, 0.9, 0.7, 0.5, 0.35, 0.25, 0.15),
        mellow=0.05,
        attack=0.03,
        release=0.04,
    ),
    "marimba": Voice(
        bright=((1, 1), (3.9375, 0.8), (9.25, 0.3)),
        dark=_harmonics(1),
        mellow=0.04,
        attack=0.001,
        decay=0.12,
        release=0.15,
    ),
    "clarinet": Voice(
        bright=_falling(15, 0.9, odd=True),
        attack=0.03,
        release=0.04,
        breath=0.03,
    ),
    "synthesizer": Voice(
        bright=_falling(24, 0.5),
        dark=_falling(24, 0.2),
        mellow=0.2,
        release=0.02,
        tremolo=0.6,
    ),
}


def _table(partials: Partials, highest: int) -> Samples:
    """Wavetable of the partials up to a multiple of the fundamental, with an RMS of 1."""
    spectrum = np.zeros(CYCLES * PERIOD // 2 + 1, np.complex128)
    for ratio, amplitude in partials:
        if ratio <= max(highest, 1):
            phase = np.exp(1j * pi * ratio * ratio / 8)  # spread phases, to limit the peak
            spectrum[round(ratio * CYCLES)] += amplitude * phase
    wave = np.fft.irfft(spectrum)
    return (wave / np.sqrt(np.mean(wave * wave))).astype(np.float32)


@lru_cache(maxsize=8)
def _noise(rate: int) -> Samples:
    random = np.random.default_rng(0)
    return random.standard_normal(int(MAX_SECONDS * rate), np.float32)


@lru_cache(maxsize=64)
def _shape(name: str, rate: int) -> tuple[npt.NDArray[np.float64], Samples, Samples]:
    """Curves of all notes of an instrument, over `MAX_SECONDS` seconds: time warped by the vibrato,
    envelope, and weight of the bright table."""
    voice = VOICES[name]
    time = np.arange(int(MAX_SECONDS * rate)) / rate
    envelope = np.minimum(time / voice.attack, 1) * np.exp(-time / voice.decay)
    envelope *= 1 - voice.tremolo * (0.5 - 0.5 * np.cos(2 * pi * 6 * time))
    omega = 2 * pi * 5.5
    warped = time + voice.vibrato / omega * np.sin(omega * time)
    bright = np.exp(-time / voice.mellow)
    return warped, envelope.astype(np.float32), bright.astype(np.float32)


@lru_cache(maxsize=512)
def _tables(name: str, highest: int) -> tuple[Samples, Samples | None]:
    """Dark table, and what the bright one adds to it; None for nothing."""
    bright = _table(VOICES[name].bright, highest)
    if not VOICES[name].dark:
        return bright, None
    dark = _table(VOICES[name].dark, highest)
    return dark, bright - dark


def note(name: str, hertz: float, seconds: float, rate: int) -> Samples:
    """Note of the given length plus release, with a peak level of about 1."""
    voice, (time, envelope, bright) = VOICES[name], _shape(name, rate)
    count = min(int((seconds + voice.release) * rate), len(time))
    position = (time[:count] * (hertz * PERIOD)).astype(np.intp)
    position &= CYCLES * PERIOD - 1
    dark, brighter = _tables(name, min(int(0.47 * rate / hertz), 32))
    out = dark.take(position, mode="clip")  # not checked: it is in range
    if brighter is not None:
        more = brighter.take(position, mode="clip")
        more *= bright[:count]
        out += more
    if voice.breath:
        out += voice.breath * _noise(rate)[:count]
    out *= envelope[:count]
    fade = min(int(voice.release * rate) + 1, count)
    out[count - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    return out


@lru_cache(maxsize=64)
def hit(name: str, rate: int) -> Samples:
    """One drum hit, with a level of about 1 at its onset."""
    seconds = {"kick": 0.2, "snare": 0.18, "shaker": 0.07}[name]
    time = np.arange(int(seconds * rate)) / rate
    noise = _noise(rate)[: len(time)]
    if name == "kick":
        out = 1.8 * np.sin(2 * pi * (50 * time - 5 * np.exp(-time / 0.025))) * np.exp(-time / 0.07)
    elif name == "snare":
        out = (noise + np.sin(2 * pi * 190 * time)) * np.exp(-time / 0.05)
    else:
        out = 1.5 * np.diff(noise, prepend=0) * np.exp(-time / 0.018)
    return (out * np.linspace(1, 0, len(time))).astype(np.float32)

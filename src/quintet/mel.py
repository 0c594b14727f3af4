"""The mel filterbank, in NumPy, shared by training, vocoders and reports."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MelScale = Literal["slaney", "htk"]

# Slaney's Auditory Toolbox, as in librosa: 15 mels up to 1 kHz, then 27 up to 6.4 kHz.
KNEE = 1000.0
"""Hz at which Slaney's scale turns from linear to logarithmic."""
LINEAR = 200.0 / 3
"""Hz per mel below the knee."""
STEP = math.log(6.4) / 27
"""Increase of log(Hz) per mel above the knee."""


def hz_to_mel(hz: Floats, scale: MelScale = "slaney") -> Floats:
    if scale == "htk":
        return 2595 * np.log10(1 + hz / 700)
    above = KNEE / LINEAR + np.log(np.maximum(hz, KNEE) / KNEE) / STEP
    return np.where(hz < KNEE, hz / LINEAR, above)


def mel_to_hz(mel: Floats, scale: MelScale = "slaney") -> Floats:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    knee = KNEE / LINEAR
    return np.where(mel < knee, mel * LINEAR, KNEE * np.exp((np.maximum(mel, knee) - knee) * STEP))


def mel_filterbank(
    rate: int,
    n_fft: int,
    bins: int,
    low: float = 0.0,
    high: float | None = None,
    scale: MelScale = "slaney",
) -> Floats:
    """(bins, n_fft / 2 + 1): triangles of equal area in Hz (Slaney), or of height 1 (HTK)."""
    ends = hz_to_mel(np.array([low, rate / 2 if high is None else high]), scale)
    corners = mel_to_hz(np.linspace(ends[0], ends[1], bins + 2), scale)
    hz = np.linspace(0, rate / 2, n_fft // 2 + 1)
    rising = (hz - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - hz) / np.diff(corners)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    area = (corners[2:] - corners[:-2])[:, None] / 2
    return triangles if scale == "htk" else triangles / area

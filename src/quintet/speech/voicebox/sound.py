"""Sounds of log-mels in numpy, for exports: Griffin-Lim and the vocoder, as in `nn/griffin_lim.py`
and `speech/vocoder/model.py`, where the names are explained.

Shapes: t frames, f frequencies, m mel bins.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quintet.mel import mel_filterbank

HANN, MOMENTUM, MIN_MAGNITUDE = 0.25645, 0.99, 1e-6
ITERATIONS = 32
SMALLEST, DECONVOLUTIONS, LARGEST, AHEAD, PULL, FLOOR = 1e-7, 4, 4.0, 0.9, 1.3, 1e-7


class Sounds:
    def __init__(self, sample_rate: int, n_fft: int, hop_length: int, n_mels: int) -> None:
        bank = mel_filterbank(sample_rate, n_fft, n_mels, scale="htk")
        used = np.flatnonzero(bank.any(axis=0))
        self.used = slice(int(used[0]), int(used[-1]) + 1)
        self.bank = bank[:, self.used].T.astype(np.float32)
        spread = (self.bank / self.bank.sum(1, keepdims=True)).T
        self.spread = np.pad(spread, ((0, 0), self.outside(n_fft)))
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
        self.window = window.astype(np.float32)
        self.size, self.hop = n_fft, hop_length

    def outside(self, size: int) -> tuple[int, int]:
        return self.used.start, size // 2 + 1 - self.used.stop

    def griffin_lim(self, log_mels: Any) -> Any:
        """(t, m) -> (n,)."""
        sound = self.retrieved(self.magnitudes(log_mels, ITERATIONS), ITERATIONS)
        return sound[: max(1, (len(log_mels) - 1) * self.hop)]

    def vocoded(
        self, log_mels: Any, offsets: Callable[[Any], Any], retrievals: int, corrections: int
    ) -> Any:
        """(t, m) -> (n,); `offsets` are those of the network."""
        logs = np.log(np.maximum(self.magnitudes(log_mels, DECONVOLUTIONS), SMALLEST))
        start = np.exp(logs + offsets(log_mels))
        sound = self.retrieved(self.magnitudes(log_mels, DECONVOLUTIONS, start), retrievals)
        previous = None
        for _ in range(corrections):
            spectrum = self.stft(sound, len(log_mels))
            ahead = spectrum if previous is None else previous + (1 + AHEAD) * (spectrum - previous)
            present = np.log(np.maximum(np.abs(ahead[:, self.used]) @ self.bank, FLOOR))
            gain = np.clip(PULL * (log_mels - present), -LARGEST, LARGEST) @ self.spread
            sound, previous = self.to_sound(ahead * np.exp(gain)), spectrum
        return sound

    def magnitudes(self, log_mels: Any, iterations: int, start: Any = None) -> Any:
        """(t, m) -> (t, f)."""
        area = self.bank.sum(0)
        bank, mels = self.bank / area, np.exp(log_mels) / area
        share = np.maximum(bank.sum(1), np.float32(1e-12))
        spectra = mels @ bank.T / share if start is None else start[:, self.used]
        for _ in range(iterations):
            ratios = mels / np.maximum(spectra @ bank, np.float32(1e-20))
            spectra = spectra * (ratios @ bank.T) / share
        return np.pad(spectra, ((0, 0), self.outside(self.size)))

    def retrieved(self, magnitudes: Any, iterations: int) -> Any:
        """(t, f) -> (n,)."""
        spectrum = magnitudes * np.exp(1j * self.initial_phases(magnitudes)).astype(np.complex64)
        previous = np.zeros_like(spectrum)
        for _ in range(iterations):
            projected = self.stft(self.to_sound(spectrum), len(magnitudes))
            ahead = previous + np.float32(1 + MOMENTUM) * (projected - previous)
            power = np.maximum(ahead.real**2 + ahead.imag**2, np.float32(1e-24))
            spectrum, previous = ahead * (magnitudes / np.sqrt(power)), projected
        return self.to_sound(spectrum)

    def stft(self, sound: Any, count: int) -> Any:
        half = self.size // 2
        rest = (count - 1) * self.hop + self.size - half - len(sound)
        padded = np.pad(sound, (half, max(0, rest)))
        pieces = np.lib.stride_tricks.sliding_window_view(padded, self.size)[:: self.hop][:count]
        return np.fft.rfft(pieces * self.window).astype(np.complex64)

    def to_sound(self, spectrum: Any) -> Any:
        count, half = len(spectrum), self.size // 2
        windows = np.fft.irfft(spectrum, self.size).astype(np.float32) * self.window
        squares = np.broadcast_to(self.window**2, windows.shape)
        weights = np.maximum(self.overlap_add(squares), np.float32(1e-8))
        sound = self.overlap_add(windows) / weights
        return sound[half : half + max(1, (count - 1) * self.hop)]

    def overlap_add(self, windows: Any) -> Any:
        total = np.zeros((len(windows) - 1) * self.hop + self.size, np.float32)
        for number, window in enumerate(windows):
            total[number * self.hop : number * self.hop + self.size] += window
        return total

    def initial_phases(self, magnitudes: Any) -> Any:
        size, hop = self.size, self.hop
        count, bins = magnitudes.shape
        steady = np.arange(count)[:, None] * np.arange(bins) * hop % size
        least = max(MIN_MAGNITUDE * float(magnitudes.max()), 1e-30)
        logs = np.pad(np.log(np.maximum(magnitudes, np.float32(least))), ((0, 0), (1, 1)), "edge")
        advance = (logs[:, 2:] - logs[:, :-2]) * np.float32(hop / (2 * HANN * size))
        advance = (advance + np.pad(advance, ((1, 0), (0, 0)))[:-1]) / 2
        phases = steady * (2 * math.pi / size) + np.cumsum(advance, 0)
        return phases.astype(np.float32)

"""Griffin-Lim: sound from magnitudes of spectra.

Shapes: b sounds of n samples, t frames, f frequencies, m mel bins.

With momentum it is Perraudin, Balazs and Sondergaard's (WASPAA 2013). Its initial phases are phase
gradients of the magnitudes (Prusa, Balazs and Sondergaard, TASLP 2017) integrated over time:
deterministic, and half as many iterations suffice as from random phases.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision, matmul, without_autocast
from quintet.nn.spectrogram import LogMel

HANN = 0.25645
"""Time-frequency ratio of the Gaussian closest to a Hann window, per squared window length."""
MOMENTUM = 0.99
MIN_MAGNITUDE = 1e-6
"""Magnitudes below this fraction of the largest do not define phases."""


def overlap_add(windows: Tensor, hop: int) -> Tensor:
    """(b, t, size) -> (b, (t - 1) hop + size)."""
    count, size = windows.shape[1:]
    if size % hop:
        whole = (1, (count - 1) * hop + size)
        return F.fold(windows.mT, whole, (1, size), stride=(1, hop))[:, 0, 0]
    # Pieces of a hop, added where they are: on a CPU a tenth of the time of a fold.
    pieces = windows.unflatten(-1, (-1, hop))
    total = windows.new_zeros(len(windows), count + size // hop - 1, hop)
    for place, piece in enumerate(pieces.unbind(2)):
        total[:, place : place + count] += piece
    return total.flatten(1)


def power(spectrum: Tensor) -> Tensor:
    """Squares of magnitudes; on a CPU `abs` of complex numbers takes four times as long."""
    return spectrum.real.square() + spectrum.imag.square()


def scaled(spectrum: Tensor, factors: Tensor) -> Tensor:
    """Times real factors, which `*` would first make complex."""
    return torch.view_as_complex(torch.view_as_real(spectrum) * factors[..., None])


def beyond(previous: Tensor, spectrum: Tensor, momentum: float) -> Tensor:
    """Past a spectrum, by a share of the way to it. `lerp` of complex numbers takes longer."""
    parts = torch.view_as_real(previous), torch.view_as_real(spectrum)
    return torch.view_as_complex(torch.lerp(*parts, 1 + momentum))


def envelope(window: Tensor, count: int, hop: int) -> Tensor:
    """(1, (count - 1) hop + n_fft): sums of the squares of windows that overlap."""
    squares = window.square().expand(1, count, len(window))
    return overlap_add(squares, hop).clamp_min(1e-8)


def istft(spectrum: Tensor, window: Tensor, hop: int, weights: Tensor) -> Tensor:
    """(b, t, f) -> (b, (t - 1) hop + n_fft): least-squares inverse; `weights` is the envelope."""
    return overlap_add(torch.fft.irfft(spectrum, len(window)) * window, hop) / weights


def running_sum(values: Tensor) -> Tensor:
    """Cumulative sums over the second axis, by doubling: `cumsum` varies on a GPU."""
    step = 1
    while step < values.shape[1]:
        values = torch.cat((values[:, :step], values[:, step:] + values[:, :-step]), 1)
        step *= 2
    return values


class GriffinLim(nn.Module):
    """Log-mels (b, m, t) of a `LogMel` -> sounds (b, n), independent of each other."""

    def __init__(self, mel: LogMel, iterations: int = 32) -> None:
        super().__init__()
        self.mel, self.iterations = mel, iterations

    @torch.no_grad()
    def forward(self, log_mels: Tensor, length: int | None = None) -> Tensor:
        """`length` is in samples; frames define it only up to a hop."""
        with without_autocast(log_mels):
            magnitudes = self.magnitudes(full_precision(log_mels))
            sound = self.retrieved(magnitudes, self.iterations)
            short = 0 if length is None else max(0, length - sound.shape[1])
            return F.pad(sound, (0, short))[:, :length]

    def retrieved(self, magnitudes: Tensor, iterations: int) -> Tensor:
        """(b, t, f) -> (b, (t - 1) hop): sounds with about these magnitudes."""
        count = magnitudes.shape[1]
        weights = self.envelope(count)
        spectrum = torch.polar(magnitudes, self.initial_phases(magnitudes))
        previous = torch.zeros_like(spectrum)
        for _ in range(iterations):
            # Momentum of sounds would do the same, but its rounding is heard where it is quiet.
            projected = self.stft(self.to_sound(spectrum, weights), count)
            ahead = beyond(previous, projected, MOMENTUM)
            spectrum = scaled(ahead, magnitudes * power(ahead).clamp_min(1e-24).rsqrt())
            previous = projected
        return self.to_sound(spectrum, weights)

    def stft(self, sound: Tensor, count: int) -> Tensor:
        half, hop = self.mel.n_fft // 2, self.mel.hop_length
        rest = (count - 1) * hop + self.mel.n_fft - half - sound.shape[1]
        pieces = F.pad(sound, (half, rest)).unfold(-1, self.mel.n_fft, hop)
        return torch.fft.rfft(pieces * self.mel.window)

    def envelope(self, count: int) -> Tensor:
        """What `to_sound` divides by, for sounds of so many frames."""
        return envelope(self.mel.window, count, self.mel.hop_length)

    def to_sound(self, spectrum: Tensor, weights: Tensor) -> Tensor:
        """(b, t, f) -> (b, (t - 1) hop), without the padding of half a window."""
        half = self.mel.n_fft // 2
        count = (spectrum.shape[1] - 1) * self.mel.hop_length
        sound = istft(spectrum, self.mel.window, self.mel.hop_length, weights)
        return sound[:, half : half + max(1, count)]

    def magnitudes(
        self, log_mels: Tensor, iterations: int = 32, start: Tensor | None = None
    ) -> Tensor:
        """(b, m, t) -> (b, t, f): non-negative spectra with these mels, near to `start`.

        Richardson-Lucy iterations (1972, 1974) from a smooth spectrum keep it smooth and positive.
        Least squares, dominated by the loudest mels, is less accurate.
        """
        area = self.mel.bank.sum(0)
        bank = self.mel.bank / area
        mels = log_mels.mT.exp() / area
        share = bank.sum(1).clamp_min(1e-12)
        if start is None:
            spectra = matmul(mels, bank.T) / share
        else:
            spectra = start[..., self.mel.first : self.mel.last] ** self.mel.power
        for _ in range(iterations):
            ratios = mels / matmul(spectra, bank).clamp_min(1e-20)
            spectra = spectra * matmul(ratios, bank.T) / share
        above = self.mel.n_fft // 2 + 1 - self.mel.last
        return F.pad(spectra ** (1 / self.mel.power), (self.mel.first, above))

    def initial_phases(self, magnitudes: Tensor) -> Tensor:
        """Phases integrated over frames, from the slope of the log-spectrum over frequency."""
        size, hop = self.mel.n_fft, self.mel.hop_length
        count, bins = magnitudes.shape[1:]
        frame = torch.arange(count, device=magnitudes.device)[:, None]
        steady = frame * torch.arange(bins, device=magnitudes.device) * hop % size
        least = (MIN_MAGNITUDE * magnitudes.amax((1, 2), keepdim=True)).clamp_min(1e-30)
        logs = torch.maximum(magnitudes, least).log()
        logs = torch.cat((logs[..., :1], logs, logs[..., -1:]), -1)
        advance = (logs[..., 2:] - logs[..., :-2]) * (hop / (2 * HANN * size))
        advance = (advance + F.pad(advance, (0, 0, 1, 0))[:, :-1]) / 2
        return steady * (2 * math.pi / size) + running_sum(advance)

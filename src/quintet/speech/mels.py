"""Frames of speech: log-mels as published vocoders read them, scaled to be about one.

The mel scale is HTK's (2595 log10(1 + f / 700)), with triangles of height one, and the logarithm is
of magnitudes: what Vocos (arXiv 2306.00814) was trained on at 24 kHz.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from quintet.nn.quantise import full_precision
from quintet.nn.spectrogram import LogMel
from quintet.speech.config import VoiceBoxConfig

FLOOR = 1e-7
"""The least magnitude; its logarithm is -16.1."""


def htk_bank(rate: int, n_fft: int, bins: int) -> npt.NDArray[np.float64]:
    """(m, n_fft / 2 + 1): triangles from 0 to half the rate."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, bins + 2) / 2595) - 1)
    hz = np.linspace(0, rate / 2, n_fft // 2 + 1)
    rising = (hz - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - hz) / np.diff(corners)[1:, None]
    return np.maximum(0, np.minimum(rising, falling))


class SpeechMel(LogMel):
    """Sounds (b, n) -> (b, m, f)."""

    def __init__(self, rate: int, n_fft: int, hop: int, bins: int) -> None:
        super().__init__(rate, n_fft, hop, bins, power=1.0, floor=FLOOR)
        bank = htk_bank(rate, n_fft, bins)
        if not bank.any(axis=1).all():
            raise ValueError(
                f"{bins} mel bins are too narrow for a transform of {n_fft} samples: raise n_fft,"
                " or take fewer bins"
            )
        used = np.flatnonzero(bank.any(axis=0))
        self.first, self.last = int(used[0]), int(used[-1]) + 1
        self.bank = torch.from_numpy(bank[:, self.first : self.last].T.copy()).float()


class Frames(nn.Module):
    """Sounds or latents, and the frames (b, t, d) that the model works on."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        self.config = config
        self.mel: SpeechMel | None = None
        if config.features == "mel":
            self.mel = SpeechMel(config.rate, config.n_fft, config.hop, config.bins)

    def count(self, lengths: Tensor) -> Tensor:
        """Frames of sounds of so many samples; latents are frames already."""
        return lengths if self.mel is None else self.mel.frames(lengths)

    def forward(self, audio: Tensor) -> Tensor:
        """(b, n) -> (b, t, d), or latents (b, t, d) as they are, scaled."""
        rows = full_precision(audio) if self.mel is None else self.mel(audio).mT
        return (rows - self.config.mean) / self.config.deviation

    def back(self, frames: Tensor) -> Tensor:
        """(b, t, d) -> log-mels (b, d, t), or latents (b, t, d) in their own scale."""
        rows = full_precision(frames) * self.config.deviation + self.config.mean
        return rows if self.mel is None else rows.mT

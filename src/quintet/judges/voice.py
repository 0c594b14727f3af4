"""The voice encoder of Resemblyzer: an LSTM trained with the GE2E loss (arXiv 1710.10467).

Its weights are a file of the package resemblyzer; its code is not used, because it imports librosa
and a voice activity detector. Unlike there, pauses are not cut out of recordings. The file is
`resemblyzer/pretrained.pt` of the wheel, also where it is installed without its dependencies.

Shapes: n samples at 16 kHz, f frames of 40 mel energies, w windows of 160 frames (1.6 s).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.spectrogram import LogMel

RATE = 16_000
HOP = 160
FRAMES = 160
"""Frames of a window."""
STEP = 77
"""Frames from one window to the next: 1.3 windows a second."""
COVERAGE = 0.75
"""Share of the last window that must be there, or it is dropped."""
LOUDNESS = 10 ** (-30 / 20)
"""Root mean square (-30 dB) to which quieter recordings are raised."""


class VoiceEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Energies and no logarithm: the floor is below all of them.
        self.mel = LogMel(RATE, 2 * HOP + HOP // 2, HOP, 40, floor=1e-30)
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, wav: Tensor) -> Tensor:
        """(n,) -> (256,), of length 1."""
        windows = self.windows(wav)
        _, (hidden, _) = self.lstm(windows)
        each = F.normalize(self.linear(hidden[-1]).relu(), dim=1)
        return F.normalize(each.mean(0), dim=0)

    def windows(self, wav: Tensor) -> Tensor:
        """(n,) -> (w, 160, 40)."""
        loud = wav.square().mean().sqrt()
        wav = wav * (LOUDNESS / loud).clamp_min(1) if loud > 0 else wav
        starts = window_starts(len(wav))
        end = (starts[-1] + FRAMES) * HOP
        padded = F.pad(wav, (0, max(0, end - len(wav))))
        mel = self.mel(padded[None])[0].mT.exp()
        return torch.stack([mel[start : start + FRAMES] for start in starts])


def window_starts(samples: int) -> list[int]:
    """First frame of each window."""
    frames = math.ceil((samples + 1) / HOP)
    starts = list(range(0, max(1, frames - FRAMES + STEP + 1), STEP))
    covered = (samples - starts[-1] * HOP) / (FRAMES * HOP)
    return starts[:-1] if covered < COVERAGE and len(starts) > 1 else starts

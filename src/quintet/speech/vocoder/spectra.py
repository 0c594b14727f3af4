"""Spectra that copies are compared by. Shapes: b sounds of n samples, m bins, t frames."""

import torch
from torch import Tensor, nn

from quintet.nn.alignment import inside
from quintet.nn.precision import without_autocast
from quintet.nn.spectrogram import LogMel

WINDOWS = (512, 1024, 2048)
"""Window lengths of the STFT error, in samples."""
FLOOR = 1e-3
"""The least magnitude in it; quieter ones are all alike."""


def mel_errors(real: Tensor, fake: Tensor, lengths: Tensor, mel: LogMel) -> Tensor:
    """(b,): L1 of the log-mels of padded sounds (b, n), over the frames of the recordings."""
    return _over_frames((mel(real) - mel(fake)).abs(), mel.frames(lengths))


def stft_errors(real: Tensor, fake: Tensor, lengths: Tensor) -> Tensor:
    """(b,): L1 of log-magnitudes, averaged over window lengths."""
    rows = [_stft_errors(real, fake, lengths, window) for window in WINDOWS]
    return torch.stack(rows).mean(0)


def _stft_errors(real: Tensor, fake: Tensor, lengths: Tensor, size: int) -> Tensor:
    window = torch.hann_window(size, device=real.device, dtype=real.dtype)
    hop, half = size // 4, size // 2
    with without_autocast(real):
        logs = [
            torch.fft.rfft(nn.functional.pad(x, (half, half)).unfold(-1, size, hop) * window)
            .abs()
            .clamp_min(FLOOR)
            .log()
            .mT
            for x in (real, fake)
        ]
    return _over_frames((logs[0] - logs[1]).abs(), 1 + lengths // hop)


def _over_frames(values: Tensor, frames: Tensor) -> Tensor:
    """(b, m, t) -> (b,): the mean over the first frames of each."""
    mask = inside(frames, values.shape[2])
    return (values.mean(1) * mask).sum(1) / mask.sum(1)

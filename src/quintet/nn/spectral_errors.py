"""Spectra that copies are compared by. Shapes: b sounds of n samples, m bins, t frames."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from quintet.nn.alignment import inside
from quintet.nn.precision import without_autocast
from quintet.nn.spectrogram import LogMel

WINDOWS = (512, 1024, 2048)
"""Window lengths of the STFT error, in samples."""
FLOOR = 1e-3
"""The least magnitude in it; quieter ones are all alike."""
SCALES = (256, 512, 1024, 2048)
"""Window lengths of the log-mels, in samples; each has a sixteenth as many bins."""
LOG_MEL_FLOOR = 1e-5
"""The least magnitude of the log-mels."""


class LogMels(nn.Module):
    """Log-mels of sounds with several windows."""

    def __init__(self, scales: Sequence[LogMel]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(scales)

    def forward(self, sounds: Tensor) -> list[Tensor]:
        return [scale(sounds) for scale in self.scales]


def log_mels(rate: int) -> LogMels:
    """Those that copies are trained by; the last has the longest window."""
    return LogMels(
        [
            LogMel(rate, size, size // 4, size // 16, power=1.0, floor=LOG_MEL_FLOOR)
            for size in SCALES
        ]
    )


def copy_errors(
    mels: Callable[[Tensor], list[Tensor]], real: Tensor, fake: Tensor
) -> tuple[Tensor, Tensor]:
    """L1 of log-mels, averaged over scales, and of samples: 0-dim each."""
    mel = torch.stack([(a - b).abs().mean() for a, b in zip(mels(real), mels(fake))]).mean()
    return mel, (real - fake).abs().mean()


def mel_errors(real: Tensor, fake: Tensor, lengths: Tensor, mel: LogMel) -> Tensor:
    """(b,): L1 of the log-mels of padded sounds (b, n), over the frames of the recordings."""
    return _over_frames((mel(real) - mel(fake)).abs(), mel.frames(lengths))


def stft_errors(real: Tensor, fake: Tensor, lengths: Tensor) -> Tensor:
    """(b,): L1 of log-magnitudes, averaged over window lengths."""
    rows = [_stft_errors(real, fake, lengths, window) for window in WINDOWS]
    return torch.stack(rows).mean(0)


def si_sdr(real: Tensor, fake: Tensor, lengths: Tensor) -> Tensor:
    """(b,): scale-invariant ratio of signal and distortion of padded sounds (b, n), in dB."""
    mask = inside(lengths, real.shape[1])
    real, fake = real * mask, fake * mask
    scale = (real * fake).sum(1) / real.square().sum(1).clamp_min(1e-8)
    target = scale[:, None] * real
    signal, distortion = (x.square().sum(1).clamp_min(1e-8) for x in (target, target - fake))
    return 10 * (signal / distortion).log10()


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

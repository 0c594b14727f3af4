"""Features of speech: normalised log-mels, as published vocoders read them, or latents.

The mel scale is HTK's with triangles of height 1, and the logarithm is of magnitudes: the features
of Vocos (arXiv 2306.00814) at 24 kHz.
"""

from torch import Tensor, nn

from quintet.nn.precision import full_precision
from quintet.nn.spectrogram import LogMel
from quintet.speech.voicebox.config import VoiceBoxConfig

FLOOR = 1e-7
"""The least magnitude; its logarithm is -16.1."""


def log_mel(sample_rate: int, n_fft: int, hop_length: int, n_mels: int) -> LogMel:
    return LogMel(sample_rate, n_fft, hop_length, n_mels, power=1.0, floor=FLOOR, scale="htk")


class FeatureExtractor(nn.Module):
    """Sounds or latents -> normalised frames (b, t, c)."""

    def __init__(self, config: VoiceBoxConfig) -> None:
        super().__init__()
        self.config = config
        self.mel: LogMel | None = None
        if config.features == "mel":
            self.mel = log_mel(config.sample_rate, config.n_fft, config.hop_length, config.n_mels)

    def num_frames(self, lengths: Tensor) -> Tensor:
        """Frames of sounds of these lengths in samples; latents are frames already."""
        return lengths if self.mel is None else self.mel.frames(lengths)

    def forward(self, audio: Tensor) -> Tensor:
        """Sounds (b, n), or latents (b, t, c) -> (b, t, c)."""
        frames = full_precision(audio) if self.mel is None else self.mel(audio).mT
        return (frames - self.config.mean) / self.config.std

    def inverse(self, frames: Tensor) -> Tensor:
        """(b, t, c) -> log-mels (b, c, t), or latents (b, t, c), without normalisation."""
        frames = full_precision(frames) * self.config.std + self.config.mean
        return frames if self.mel is None else frames.mT

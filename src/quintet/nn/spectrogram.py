"""Log-mel spectrograms on the device, and SpecAugment masks (arXiv 1904.08779).

Shapes: b sounds of n samples, f frames, m mel bins.

Frames are centred, with zero padding at both ends, so a padded sound has the same frames as it has
alone. Computed in fp32 (fp64 for fp64 input) regardless of autocast.
"""

import warnings
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.mel import MelScale, mel_filterbank
from quintet.nn.precision import full_precision, without_autocast

# The FFT is a library call, compiled or not; nothing else here is complex.
warnings.filterwarnings("ignore", ".*code generation for complex operators", UserWarning)

N = TypeVar("N", int, Tensor)


class LogMel(nn.Module):
    """Sounds (b, n) -> (b, m, f): natural logarithm of the mel spectrogram, clamped at `floor`.

    The spectrum enters as magnitude ** `power`: 2 for energies, 1 for magnitudes.
    """

    window: Tensor
    bank: Tensor

    def __init__(
        self,
        sample_rate: int,
        n_fft: int,
        hop_length: int,
        n_mels: int,
        low: float = 0.0,
        high: float | None = None,
        *,
        power: float = 2.0,
        floor: float = 1e-10,
        scale: MelScale = "slaney",
    ) -> None:
        super().__init__()
        bank = mel_filterbank(sample_rate, n_fft, n_mels, low, high, scale)
        empty = int((bank.max(axis=1) <= 0).sum())
        if empty:
            raise ValueError(
                f"{empty} of {n_mels} mel filters are empty with n_fft = {n_fft}: raise n_fft, or"
                " lower n_mels"
            )
        self.n_fft, self.hop_length, self.power, self.floor = n_fft, hop_length, power, floor
        used = np.flatnonzero(bank.any(axis=0))
        self.first, self.last = int(used[0]), int(used[-1]) + 1
        weights = torch.from_numpy(bank[:, self.first : self.last].T.copy())
        hann = torch.hann_window(n_fft, dtype=torch.float64)
        self.register_buffer("bank", weights.float(), persistent=False)
        self.register_buffer("window", hann.float(), persistent=False)

    def frames(self, lengths: N) -> N:
        """Number of frames of sounds of these lengths in samples."""
        return 1 + lengths // self.hop_length

    def forward(self, wavs: Tensor) -> Tensor:
        with without_autocast(wavs):
            padded = F.pad(full_precision(wavs), (self.n_fft // 2, self.n_fft // 2))
            windows = padded.unfold(-1, self.n_fft, self.hop_length) * self.window
            spectrum = torch.fft.rfft(windows)[..., self.first : self.last]
            energy = torch.view_as_real(spectrum).square().sum(-1)
            if self.power != 2:
                energy = energy.clamp_min(torch.finfo(energy.dtype).tiny) ** (self.power / 2)
            return self.to_mel(energy).clamp_min(self.floor).log().mT

    def to_mel(self, spectrum: Tensor) -> Tensor:
        if not spectrum.is_cuda:
            return spectrum @ self.bank
        # TF32 may be on: it rounds fp32 products to 10 bits, 5e-4 of the result.
        return (spectrum.double() @ self.bank.double()).to(spectrum.dtype)


def band_mask(bands: Tensor, extent: Tensor | int, size: int) -> Tensor:
    """(b, size) booleans: true inside any of k bands per sample.

    `bands` (b, k, 2) are the width of each as a fraction of the valid `extent` (b,), and its
    relative position, from 0 (first) to 1 (last).
    """
    extent = extent if isinstance(extent, int) else extent[:, None]
    width = (bands[..., 0] * extent).round()
    start = (bands[..., 1] * (extent - width + 1)).floor()
    index = torch.arange(size, device=bands.device)
    inside = (index >= start[..., None]) & (index < (start + width)[..., None])
    return inside.any(1)

"""Log-mel spectrograms on the device, and bands of them hidden (SpecAugment, arXiv 1904.08779).

Shapes: b sounds of n samples, f frames, m mel bins.

The mel scale is Slaney's: linear up to 1 kHz, logarithmic above, with triangles of equal area. A
sound is framed about its centres and continued by zeros, so a padded sound has the same frames as
it has alone. All of it is fp32 (fp64 where the sound is), whatever the autocast.
"""

import math
import warnings
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import full_precision, without_autocast

# The transform is a library call, compiled or not; nothing else here is complex.
warnings.filterwarnings("ignore", ".*code generation for complex operators", UserWarning)

KNEE = 1000.0
"""Hz where the mel scale turns from linear to logarithmic."""
LINEAR = 200.0 / 3
"""Hz of one mel below it."""
STEP = math.log(6.4) / 27
"""Growth of the logarithm of the frequency with one mel above it."""


def hz_to_mel(hz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = KNEE / LINEAR + np.log(np.maximum(hz, KNEE) / KNEE) / STEP
    return np.where(hz < KNEE, hz / LINEAR, above)


def mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    knee = KNEE / LINEAR
    return np.where(mel < knee, mel * LINEAR, KNEE * np.exp((np.maximum(mel, knee) - knee) * STEP))


def mel_bank(rate: int, n_fft: int, bins: int, low: float, high: float) -> npt.NDArray[np.float64]:
    """(m, n_fft / 2 + 1): triangles between neighbouring mels, each of the same area in Hz."""
    ends = hz_to_mel(np.array([low, high]))
    corners = mel_to_hz(np.linspace(ends[0], ends[1], bins + 2))
    hz = np.linspace(0, rate / 2, n_fft // 2 + 1)
    rising = (hz - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - hz) / np.diff(corners)[1:, None]
    area = (corners[2:] - corners[:-2])[:, None] / 2
    return np.maximum(0, np.minimum(rising, falling)) / area


class LogMel(nn.Module):
    """Sounds (b, n) -> (b, m, f): the natural logarithm of mel bins, none below `floor`."""

    window: Tensor
    bank: Tensor

    def __init__(
        self,
        rate: int,
        n_fft: int,
        hop: int,
        bins: int,
        low: float = 0.0,
        high: float | None = None,
        *,
        power: float = 2.0,
        floor: float = 1e-10,
    ) -> None:
        super().__init__()
        bank = mel_bank(rate, n_fft, bins, low, rate / 2 if high is None else high)
        empty = int((bank.max(axis=1) <= 0).sum())
        if empty:
            raise ValueError(
                f"{empty} of {bins} mel bins lie between two frequencies of a transform of {n_fft}"
                " samples: raise n_fft, or take fewer bins"
            )
        self.n_fft, self.hop, self.power, self.floor = n_fft, hop, power, floor
        used = np.flatnonzero(bank.any(axis=0))
        self.first, self.last = int(used[0]), int(used[-1]) + 1
        weights = torch.from_numpy(bank[:, self.first : self.last].T.copy())
        hann = torch.hann_window(n_fft, dtype=torch.float64)
        self.register_buffer("bank", weights.float(), persistent=False)
        self.register_buffer("window", hann.float(), persistent=False)

    @overload
    def frames(self, lengths: int) -> int: ...
    @overload
    def frames(self, lengths: Tensor) -> Tensor: ...
    def frames(self, lengths: int | Tensor) -> int | Tensor:
        """Frames of sounds of so many samples."""
        return 1 + lengths // self.hop

    def forward(self, wavs: Tensor) -> Tensor:
        with without_autocast(wavs):
            sound = F.pad(full_precision(wavs), (self.n_fft // 2, self.n_fft // 2))
            pieces = sound.unfold(-1, self.n_fft, self.hop) * self.window
            spectrum = torch.fft.rfft(pieces)[..., self.first : self.last]
            energy = torch.view_as_real(spectrum).square().sum(-1)
            if self.power != 2:
                energy = energy.clamp_min(torch.finfo(energy.dtype).tiny) ** (self.power / 2)
            return self.mels(energy).clamp_min(self.floor).log().mT

    def mels(self, energy: Tensor) -> Tensor:
        if not energy.is_cuda:
            return energy @ self.bank
        # A run may have let products of fp32 round to 10 bits, 5e-4 of the result.
        return (energy.double() @ self.bank.double()).to(energy.dtype)


def hidden_bands(bands: Tensor, extent: Tensor | int, size: int) -> Tensor:
    """(b, size) booleans, true inside of k bands for each sample.

    `bands` (b, k, 2) give the width of each as a share of the `extent` (b,) that is valid, and its
    place in it from 0 (at the beginning) up to 1 (at the end).
    """
    whole = extent if isinstance(extent, int) else extent[:, None]
    width = (bands[..., 0] * whole).round()
    start = (bands[..., 1] * (whole - width + 1)).floor()
    place = torch.arange(size, device=bands.device)
    inside = (place >= start[..., None]) & (place < (start + width)[..., None])
    return inside.any(1)

"""VGGish (arXiv 1609.09430): the embedding of sounds that the Frechet audio distance is defined on.

Parameters have the names of the common port to PyTorch (vggish-10086976.pth). As the distance is
usually reported, the embedding is the last layer without its ReLU, without PCA or quantisation.

Shapes: n samples at 16 kHz, w windows of 96 frames (0.96 s) by 64 mel bands.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

RATE = 16_000
FRAMES, BANDS = 96, 64
_WINDOW, _HOP, _N_FFT = 400, 160, 512
_LOW, _HIGH = 125.0, 7500.0
_OFFSET = 0.01
SAMPLES = (FRAMES - 1) * _HOP + _WINDOW
"""Samples of one window."""


def mel_matrix() -> Tensor:
    """(257, 64): triangles that are linear in mel (not in Hz, as elsewhere); none holds 0 Hz."""
    mel = lambda hz: 1127.0 * np.log1p(np.asarray(hz) / 700.0)
    bins = mel(np.linspace(0, RATE / 2, _N_FFT // 2 + 1))[:, None]
    edges = np.linspace(mel(_LOW), mel(_HIGH), BANDS + 2)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    weights = np.maximum(0, np.minimum(rising, falling))
    weights[0] = 0
    return torch.from_numpy(weights)


def log_mel_windows(wav: Tensor) -> Tensor:
    """(n,) -> (w, 96, 64) in fp64: a short sound is padded, a rest is dropped."""
    wav = nn.functional.pad(wav.double(), (0, max(0, SAMPLES - len(wav))))
    hann = torch.hann_window(_WINDOW, periodic=True, dtype=torch.float64)
    spectrum = torch.fft.rfft(wav.unfold(0, _WINDOW, _HOP) * hann, _N_FFT).abs()
    mel = torch.log(spectrum @ mel_matrix() + _OFFSET)
    count = len(mel) // FRAMES
    return mel[: count * FRAMES].view(count, FRAMES, BANDS)


class VGGish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for block in ((64,), (128,), (256, 256), (512, 512)):
            for width in block:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        flat = math.prod((FRAMES // 16, BANDS // 16, 512))
        self.embeddings = nn.Sequential(
            nn.Linear(flat, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 128)
        )

    def forward(self, windows: Tensor) -> Tensor:
        """(w, 96, 64) -> (w, 128)."""
        maps = self.features(windows[:, None])
        # The weights are those of TensorFlow, where channels come last.
        return self.embeddings(maps.permute(0, 2, 3, 1).flatten(1))

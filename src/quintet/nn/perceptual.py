"""A perceptual distance without weights: edges and local spectra at several scales.

Pixel losses are least at the mean of all plausible textures, which is a blur. The amplitude of a
local spectrum does not know where a texture's grains lie, only how strong they are: an invented
texture of the right grain is close to the original, a blurred one is far.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import full_precision, without_autocast

FAINT = 0.02
"""Amplitude of a wave, in units of the pixel range, that counts as just visible."""


def spectrum_filters(window: int) -> Tensor:
    """(window^2, 2 f): cosine and sine parts of all f waves, under a Hann window.

    Scaled so that a wave of amplitude a answers with a. Opposite frequencies are one wave, and the
    constant is left to the pixel loss.
    """
    half = window // 2
    waves = [(u, v) for u in range(half + 1) for v in range(1 - half, half + 1)]
    waves = [(u, v) for u, v in waves if u > 0 or v > 0]
    at = torch.arange(window, dtype=torch.float32) + 0.5
    hann = torch.sin(math.pi * at / window).square()
    weight = hann[:, None] * hann / hann.sum() ** 2 * 2
    phases = [2 * math.pi / window * (u * at[:, None] + v * at) for u, v in waves]
    parts = [weight * wave(phase) for wave in (torch.cos, torch.sin) for phase in phases]
    return torch.stack(parts).flatten(1).T.contiguous()


def edge_distance(a: Tensor, b: Tensor) -> Tensor:
    """(b,): mean difference of the steps between neighbouring pixels."""
    error = a - b
    across, down = error.diff(dim=-1).abs(), error.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)


def luminance(images: Tensor) -> Tensor:
    """(b, c, h, w) -> (b, h, w): how bright, for the eye where there are three colours."""
    if images.shape[1] != 3:
        return images.mean(1)
    red, green, blue = images.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def half_windows(planes: Tensor, window: int) -> Tensor:
    """(b, h, w) -> (b, h', w', window, window): windows that overlap by half, less the remainder.

    What two `unfold`s give, from slices: their backward is a scatter, which is slower, and which
    the compiler lets write past the end on a CPU where one window fills the plane.
    """
    half = window // 2
    high, wide = (size // half for size in planes.shape[1:])
    tiles = planes[:, : high * half, : wide * half].unflatten(2, (wide, half))
    tiles = tiles.unflatten(1, (high, half)).transpose(2, 3)  # (b, high, wide, half, half)
    tall = torch.cat((tiles[:, :-1], tiles[:, 1:]), dim=3)
    return torch.cat((tall[:, :, :-1], tall[:, :, 1:]), dim=4)


def log_spectrum(planes: Tensor, filters: Tensor, window: int) -> Tensor:
    """(b, h, w) -> (b, h', w', f): loudness of each wave, in windows that overlap by half."""
    cosine, sine = (half_windows(planes, window).flatten(-2) @ filters).chunk(2, dim=-1)
    # The constant under the root keeps its gradient finite where a wave is absent.
    amplitude = (cosine.square() + sine.square() + (0.1 * FAINT) ** 2).sqrt()
    return torch.log1p(amplitude / FAINT)


class StructuralDistance(nn.Module):
    """Images (b, c, h, w) in 0..1, twice -> (b,)."""

    filters: Tensor

    def __init__(
        self,
        *,
        scales: int = 3,
        window: int = 8,
        edge_weight: float = 0.25,
        spectrum_weight: float = 0.25,
    ) -> None:
        super().__init__()
        self.scales, self.window = scales, window
        self.edge_weight, self.spectrum_weight = edge_weight, spectrum_weight
        self.register_buffer("filters", spectrum_filters(window), persistent=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with without_autocast(a):
            return self.distance(full_precision(a), full_precision(b))

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        found: list[Tensor] = []
        while len(found) < self.scales and min(a.shape[-2:]) >= self.window:
            found.append(self.at_one_scale(a, b))
            a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
        if not found:
            raise ValueError(
                f"images of {tuple(a.shape[-2:])} pixels are smaller than the window of"
                f" {self.window}: use larger images or a smaller window"
            )
        return torch.stack(found).mean(0)

    def at_one_scale(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = (log_spectrum(luminance(x), self.filters, self.window) for x in (a, b))
        spectrum = (first - second).abs().flatten(1).mean(1)
        return self.edge_weight * edge_distance(a, b) + self.spectrum_weight * spectrum

"""Perceptual distance without learned weights: edges and local spectra at several scales.

Pixel losses are minimised by the mean of all plausible textures, which is blurred. The amplitude
spectrum of a window is insensitive to the phase of a texture: a synthesised texture with the right
statistics is close to the original, a blurred one is not.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision, matmul, without_autocast

SCALES, WINDOW = 3, 8
WEIGHT = 0.25
"""Weight of edges, and of spectra."""
VISIBLE = 0.02
"""Just visible amplitude of a wave, in units of the pixel range."""


def spectrum_filters(window: int) -> Tensor:
    """(window^2, 2 f): cosine and sine filters of all f frequencies, with a Hann window.

    Scaled so that the response to a wave is its amplitude. Opposite frequencies count once; the
    constant is left to the pixel loss.
    """
    half = window // 2
    waves = [(u, v) for u in range(half + 1) for v in range(1 - half, half + 1)]
    waves = [(u, v) for u, v in waves if u > 0 or v > 0]
    positions = torch.arange(window, dtype=torch.float32) + 0.5
    hann = torch.sin(math.pi * positions / window).square()
    weight = hann[:, None] * hann / hann.sum() ** 2 * 2
    phases = [2 * math.pi / window * (u * positions[:, None] + v * positions) for u, v in waves]
    parts = [weight * wave(phase) for wave in (torch.cos, torch.sin) for phase in phases]
    return torch.stack(parts).flatten(1).T.contiguous()


def edge_distance(a: Tensor, b: Tensor) -> Tensor:
    """(b,): mean absolute difference of the image gradients."""
    error = a - b
    across, down = error.diff(dim=-1).abs(), error.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)


def luminance(images: Tensor) -> Tensor:
    """(b, c, h, w) -> (b, h, w): luma for RGB, else the mean over channels."""
    if images.shape[1] != 3:
        return images.mean(1)
    red, green, blue = images.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def half_windows(planes: Tensor, window: int) -> Tensor:
    """(b, h, w) -> (b, h', w', window, window): windows that overlap by half; the rest is cropped.

    Equal to two `unfold`s, but from slices: the backward of unfold is a slower scatter, and on a
    CPU the compiler lets it write out of bounds if one window fills the plane.
    """
    half = window // 2
    high, wide = (size // half for size in planes.shape[1:])
    tiles = planes[:, : high * half, : wide * half].unflatten(2, (wide, half))
    tiles = tiles.unflatten(1, (high, half)).transpose(2, 3)  # (b, high, wide, half, half)
    tall = torch.cat((tiles[:, :-1], tiles[:, 1:]), dim=3)
    return torch.cat((tall[:, :, :-1], tall[:, :, 1:]), dim=4)


def log_spectrum(planes: Tensor, filters: Tensor, window: int) -> Tensor:
    """(b, h, w) -> (b, h', w', f): log amplitudes, in windows that overlap by half."""
    cosine, sine = matmul(half_windows(planes, window).flatten(-2), filters).chunk(2, dim=-1)
    # The constant keeps the gradient of the root finite at zero amplitude.
    amplitude = (cosine.square() + sine.square() + (0.1 * VISIBLE) ** 2).sqrt()
    return torch.log1p(amplitude / VISIBLE)


class StructuralDistance(nn.Module):
    """Two batches of images (b, c, h, w) in 0..1 -> (b,)."""

    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", spectrum_filters(WINDOW), persistent=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with without_autocast(a):
            return self.distance(full_precision(a), full_precision(b))

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        distances: list[Tensor] = []
        while len(distances) < SCALES and min(a.shape[-2:]) >= WINDOW:
            distances.append(self.single_scale(a, b))
            a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
        if not distances:
            raise ValueError(
                f"images of {tuple(a.shape[-2:])} pixels are smaller than the window of"
                f" {WINDOW}: use larger images"
            )
        return torch.stack(distances).mean(0)

    def single_scale(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = (log_spectrum(luminance(x), self.filters, WINDOW) for x in (a, b))
        spectrum = (first - second).abs().flatten(1).mean(1)
        return WEIGHT * edge_distance(a, b) + WEIGHT * spectrum

"""PSNR, SSIM and sharpness of images (b, c, h, w) in 0..1, one value per sample.

SSIM (Wang et al., 2004) with its Gaussian window of 11 pixels, over valid positions.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.nn.precision import full_precision, without_autocast, without_tf32

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Decibels; equal images give 100."""
    error = (full_precision(a) - full_precision(b)).square().flatten(1).mean(1)
    return -10 * torch.log10(error.clamp_min(1e-10))


def gaussian(like: Tensor) -> Tensor:
    offsets = torch.arange(WINDOW, device=like.device, dtype=like.dtype) - WINDOW // 2
    weight = torch.exp(-offsets.square() / (2 * SIGMA**2))
    return weight / weight.sum()


def blur(planes: Tensor) -> Tensor:
    """Separable Gaussian blur of (n, 1, h, w).

    As products with banded matrices: a convolution of a single channel takes a CPU up to twenty
    times as long.
    """
    window = gaussian(planes)
    rows, columns = (_banded(window, size) for size in planes.shape[-2:])
    return rows @ (planes @ columns.mT)


def _banded(window: Tensor, size: int) -> Tensor:
    """(size - WINDOW + 1, size): row i holds the window from column i on."""
    shifts = torch.eye(size, device=window.device, dtype=window.dtype)
    return F.conv1d(shifts[:, None], window[None, None])[:, 0].mT


def ssim(a: Tensor, b: Tensor) -> Tensor:
    if min(a.shape[-2:]) < WINDOW:
        raise ValueError(f"ssim needs at least {WINDOW} pixels a side, not {tuple(a.shape[-2:])}")
    with without_autocast(a), without_tf32():
        x, y = (full_precision(image).flatten(0, 1)[:, None] for image in (a, b))
        mx, my, xx, yy, xy = blur(torch.cat((x, y, x * x, y * y, x * y))).chunk(5)
        luminance = (2 * mx * my + C1) / (mx.square() + my.square() + C1)
        vx, vy, cov = xx - mx.square(), yy - my.square(), xy - mx * my
        contrast_structure = (2 * cov + C2) / (vx + vy + C2)
        return (luminance * contrast_structure).unflatten(0, a.shape[:2]).flatten(1).mean(1)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels; lower for blurred images."""
    across, down = images.diff(dim=-1).abs(), images.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)


def sharpness(images: Tensor, real: Tensor) -> Tensor:
    """Total variation relative to that of the originals; below 1 is blurred."""
    return total_variation(images) / total_variation(real).clamp_min(1e-6)

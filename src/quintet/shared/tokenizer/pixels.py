"""Pixels of images and clips: conversion, enlargement and the bicubic baseline."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.media.pixels import Pixels


def to_bytes(values: Tensor) -> Pixels:
    """(3, ..., h, w) in 0..1 to (..., h, w, 3) uint8."""
    scaled = (values.detach().float() * 255).round().clamp(0, 255).to(torch.uint8)
    return scaled.movedim(0, -1).cpu().numpy()


def enlarged(pixels: Pixels, side: int = 128) -> Pixels:
    """(..., h, w, 3): nearest-neighbour upscaling by a whole factor, to about `side` pixels."""
    factor = max(1, round(side / max(pixels.shape[-3:-1])))
    return pixels.repeat(factor, axis=-3).repeat(factor, axis=-2)


def bicubic(images: Tensor, factor: int) -> Tensor:
    """(b, c, h, w): down- and upsampling by a factor, not clamped."""
    size = tuple(images.shape[-2:])
    options: dict[str, Any] = {"mode": "bicubic", "antialias": True, "align_corners": False}
    small = F.interpolate(images, [side // factor for side in size], **options)
    return F.interpolate(small, size, **options)

"""Pixels of images and clips: conversion, colour channels, enlargement and the bicubic baseline."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.errors import RunError
from quintet.media.pixels import Extent, Pixels, crop_box
from quintet.media.splits import Key
from quintet.shared.tokenizer.config import PixelDataConfig

COMPARED = ("original", "reconstruction", "difference")


def to_bytes(values: Tensor) -> Pixels:
    """(c, ..., h, w) in 0..1 to (..., h, w, c) uint8."""
    scaled = (values.detach().float() * 255).round().clamp(0, 255).to(torch.uint8)
    return scaled.movedim(0, -1).cpu().numpy()


def in_channels(pixels: Pixels, channels: int) -> Pixels:
    """RGB or RGBA (..., 3 or 4) as grey (..., 1), as it is, or RGBA, opaque."""
    if channels == 1:
        weights = np.array([19595, 38470, 7471], np.uint32)  # ITU-R 601, as in Pillow
        grey = (pixels[..., :3].astype(np.uint32) @ weights + 0x8000) >> 16
        return grey.astype(np.uint8)[..., None]
    if channels == 4 and pixels.shape[-1] == 3:
        return np.concatenate([pixels, np.full_like(pixels[..., :1], 255)], axis=-1)
    return pixels


def displayed(pixels: Pixels) -> Pixels:
    """(..., c) as RGB: grey is repeated, and channels after the third are left out."""
    return pixels[..., [0, 0, 0]] if pixels.shape[-1] < 3 else pixels[..., :3]


def three_channels(images: Tensor) -> Tensor:
    """(n, c, h, w) as (n, 3, h, w): fewer are averaged and repeated, further ones left out."""
    if images.shape[1] < 3:
        return images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return images[:, :3]


def random_crop(config: PixelDataConfig, key: Key | None) -> dict[str, float]:
    """Scale and place of a crop, drawn from the key; the largest in the centre without one."""
    if key is None or config.min_crop == 1:
        return {"scale": 1.0, "top": 0.5, "left": 0.5}
    draw = key.random("crop")
    scale = draw.uniform(config.min_crop, 1)
    return {"scale": scale, "top": draw.random(), "left": draw.random()}


def resize_crop_fast(
    frames: Pixels, size: tuple[int, int], *, scale: float, top: float, left: float
) -> Pixels:
    """`resize_crop_clip` in a sixth of the time: bicubic instead of Lanczos, for all frames at
    once, with the edges of the crop on whole pixels. Only for training."""
    extent = Extent(frames.shape[2], frames.shape[1])
    box = crop_box(extent, size, scale=scale, top=top, left=left)
    x, y = min(round(box[0]), extent.width - 1), min(round(box[1]), extent.height - 1)
    crop = frames[:, y : max(round(box[3]), y + 1), x : max(round(box[2]), x + 1)]
    planes = torch.from_numpy(crop).permute(0, 3, 1, 2)
    return F.interpolate(planes, size, mode="bicubic", antialias=True).permute(0, 2, 3, 1).numpy()


def check_channels(channels: int, known: tuple[int, ...], what: str) -> None:
    if channels not in known:
        raise RunError(
            f"the model has {channels} channels, but {what} can be read with"
            f" {' or '.join(map(str, known))}; give a data set of your own, or change channels"
        )


def enlarged(pixels: Pixels, side: int = 128) -> Pixels:
    """(..., h, w, 3): nearest-neighbour upscaling by a whole factor, to about `side` pixels."""
    factor = max(1, round(side / max(pixels.shape[-3:-1])))
    return pixels.repeat(factor, axis=-3).repeat(factor, axis=-2)


def compared(real: Tensor, reconstruction: Tensor) -> list[list[Pixels]]:
    """A row of enlarged pictures, or clips, for each sample, as `COMPARED` says."""
    return [
        [enlarged(displayed(to_bytes(x))) for x in (a, b, (a - b).abs().clamp(0, 1))]
        for a, b in zip(real, reconstruction)
    ]


def bicubic(images: Tensor, factor: int) -> Tensor:
    """(b, c, h, w): down- and upsampling by a factor, not clamped."""
    size = tuple(images.shape[-2:])
    options: dict[str, Any] = {"mode": "bicubic", "antialias": True, "align_corners": False}
    small = F.interpolate(images, [side // factor for side in size], **options)
    return F.interpolate(small, size, **options)

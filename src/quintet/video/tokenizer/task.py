"""Training of the video tokenizer (MAGVIT-v2, arXiv 2310.05737): shared/tokenizer/task.py on clips.

A frame discriminator and a motion discriminator. The perceptual distance compares a few frames of
each clip, drawn from the sample's key.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import fold, uniform
from quintet.engine.task import Batch, Exhibit, Measured, Rows
from quintet.nn.similarity import psnr, ssim
from quintet.shared.tokenizer.pixels import bicubic
from quintet.shared.tokenizer.task import TokenizerTask
from quintet.video import data
from quintet.video.exhibits import ClipSheet
from quintet.video.tokenizer.config import VideoRecipe
from quintet.video.tokenizer.model import (
    FrameDiscriminator,
    MotionDiscriminator,
    VideoTokenizer,
    temporal_error,
)

SHOWN = 4
"""Clips in an exhibit."""


class VideoTask(TokenizerTask):
    main = "tokenizer"
    field, settings, room = "video", "videos", data

    def __init__(self, recipe: VideoRecipe, model: VideoTokenizer | None = None, sets: Any = None):
        self.recipe = recipe
        torch.manual_seed(fold(recipe.seed, "weights"))
        tokenizer = model if model is not None else VideoTokenizer(recipe.model)
        channels = tokenizer.config.channels
        frame = FrameDiscriminator(channels=channels, **asdict(recipe.frame_discriminator))
        discriminators: dict[str, nn.Module] = {"frame_discriminator": frame}
        if recipe.losses.motion:
            motion = MotionDiscriminator(channels=channels, **asdict(recipe.motion_discriminator))
            discriminators["motion_discriminator"] = motion
        super().__init__(recipe, tokenizer, discriminators, sets)

    def real(self, batch: Batch) -> Tensor:
        return super().real(batch).contiguous(memory_format=torch.channels_last_3d)

    def perceptual_images(self, values: Tensor, batch: Batch) -> Tensor:
        count = min(self.recipe.losses.perceptual_frames, values.shape[2])
        frames = (uniform(batch.keys, "perceptual", (count,)) * values.shape[2]).long()
        rows = torch.arange(len(frames), device=frames.device)[:, None]
        return values[rows, :, frames].flatten(0, 1)

    # -- evaluation -------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        real = self.real(batch)
        output = nets["tokenizer"](real)
        reconstruction = output.output.clamp(0, 1)
        model = cast(VideoTokenizer, self.tokenizer)
        rows = {
            "psnr": psnr(reconstruction, real),
            "ssim": frame_ssim(reconstruction, real),
            "l1": (reconstruction - real).abs().flatten(1).mean(1),
            "motion_error": temporal_error(reconstruction, real),
            "motion_error_still": temporal_error(torch.zeros_like(real), real),
            "psnr_mean_colour": psnr(real.mean((2, 3, 4), keepdim=True).expand_as(real), real),
            "psnr_mean_frame": psnr(real.mean(2, keepdim=True).expand_as(real), real),
            "psnr_bicubic": psnr(bicubic_baseline(real, model.factor, model.time_factor), real),
            **self.tokenizer.quantiser.rows(output),
        }
        return {name: Rows(values) for name, values in rows.items()}

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        real = self.real(batch)[:SHOWN]
        reconstruction = nets["tokenizer"](real).output.clamp(0, 1)
        return [ClipSheet("reconstructions", real, reconstruction)]


def frame_ssim(a: Tensor, b: Tensor) -> Tensor:
    """(b,): SSIM of frames, averaged over the clip."""
    first, second = (clip.transpose(1, 2).flatten(0, 1) for clip in (a, b))
    return ssim(first, second).unflatten(0, (a.shape[0], a.shape[2])).mean(1)


def bicubic_baseline(clips: Tensor, factor: int, time_factor: int) -> Tensor:
    """Bicubic down- and upsampling, with as many pixels as the tokenizer has ids.

    Keeps every `time_factor`-th frame and interpolates linearly in between.
    """
    frames = clips[:, :, ::time_factor].transpose(1, 2)
    blurred = bicubic(frames.flatten(0, 1), factor).unflatten(0, frames.shape[:2]).transpose(1, 2)
    if clips.shape[2] > 1:
        size = tuple(clips.shape[2:])
        blurred = F.interpolate(blurred, size, mode="trilinear", align_corners=True)
    return blurred.clamp(0, 1)


build = VideoTask

"""The video tokenizer's task (MAGVIT-v2, arXiv 2310.05737): shared/tokenizer_task.py, on clips.

Two critics, one of frames and one of motion. The perceptual distance compares a few frames of each
clip; which ones depends on the sample's key.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.keys import fold, uniform
from quintet.engine.task import Batch, Exhibit, Measured, Rows
from quintet.nn.similarity import psnr, ssim
from quintet.shared.tokenizer_task import TokenizerTask
from quintet.video import data
from quintet.video.config import VideoRecipe
from quintet.video.exhibits import ClipSheet
from quintet.video.model import FrameDiscriminator, TemporalDiscriminator, VideoTokenizer

SHOWN = 4
"""Clips in an exhibit."""


def build(recipe: VideoRecipe) -> "VideoTask":
    return VideoTask(recipe)


class VideoTask(TokenizerTask):
    main = "tokenizer"
    field = "video"

    def __init__(self, recipe: VideoRecipe, model: VideoTokenizer | None = None, sets: Any = None):
        self.recipe = recipe
        torch.manual_seed(fold(recipe.seed, "weights"))
        tokenizer = model if model is not None else VideoTokenizer(recipe.model)
        critics: dict[str, Any] = {
            "frame_critic": (FrameDiscriminator(recipe.frame_critic), recipe.critics)
        }
        if recipe.losses.motion:
            motion = TemporalDiscriminator(recipe.motion_critic)
            critics["motion_critic"] = (motion, recipe.critics)
        super().__init__(recipe, tokenizer, recipe.tokenizer, critics, sets)

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        recipe = self.recipe
        return data.open_data(recipe.data, recipe.videos, split, recipe.seed)  # type: ignore[arg-type]

    def collate(self, items: list[Any]) -> Any:
        return data.collate(items)

    def real(self, batch: Batch) -> Tensor:
        return super().real(batch).contiguous(memory_format=torch.channels_last_3d)

    def pictures(self, values: Tensor, batch: Batch) -> Tensor:
        count = min(self.recipe.losses.perceptual_frames, values.shape[2])
        drawn = uniform(batch.keys, "perceptual", (count,))
        which = (drawn * values.shape[2]).long()
        rows = torch.arange(len(which), device=which.device)[:, None]
        return values[rows, :, which].flatten(0, 1)

    # -- measuring and showing --------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        real = self.real(batch)
        made = nets["tokenizer"](real)
        clip = made.videos.clamp(0, 1)
        model = self.recipe.model
        rows = {
            "psnr": psnr(clip, real),
            "ssim": frame_similarity(clip, real),
            "l1": (clip - real).abs().flatten(1).mean(1),
            "motion_error": motion_error(clip, real),
            "motion_error_still": motion_error(torch.zeros_like(real), real),
            "psnr_mean_colour": psnr(real.mean((2, 3, 4), keepdim=True).expand_as(real), real),
            "psnr_mean_frame": psnr(real.mean(2, keepdim=True).expand_as(real), real),
            "psnr_shrink_enlarge": psnr(
                shrink_and_enlarge(real, model.factor, model.time_factor), real
            ),
            "ids": made.ids,
        }
        return {name: Rows(values) for name, values in rows.items()}

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        real = self.real(batch)[:SHOWN]
        made = nets["tokenizer"](real).videos.clamp(0, 1)
        return [ClipSheet("reconstructions", real, made)]


def frame_similarity(a: Tensor, b: Tensor) -> Tensor:
    """(b,): SSIM of frames, averaged over the clip."""
    first, second = (clip.transpose(1, 2).flatten(0, 1) for clip in (a, b))
    return ssim(first, second).unflatten(0, (a.shape[0], a.shape[2])).mean(1)


def motion_error(a: Tensor, b: Tensor) -> Tensor:
    """(b,): mean absolute difference of what changes from frame to frame; 0 for single frames."""
    if a.shape[2] == 1:
        return a.new_zeros(a.shape[0])
    return (a.diff(dim=2) - b.diff(dim=2)).abs().flatten(1).mean(1)


def shrink_and_enlarge(clips: Tensor, factor: int, time_factor: int) -> Tensor:
    """The baseline that spends as many pixels as the tokenizer spends ids.

    Every `time_factor`-th frame is kept and the others lie on the line between two kept ones.
    """
    frames = clips[:, :, ::time_factor].transpose(1, 2)
    size = tuple(clips.shape[-2:])
    options: dict[str, Any] = {"mode": "bicubic", "antialias": True, "align_corners": False}
    small = F.interpolate(frames.flatten(0, 1), [side // factor for side in size], **options)
    kept = F.interpolate(small, size, **options).unflatten(0, frames.shape[:2]).transpose(1, 2)
    if clips.shape[2] == 1:
        return kept.clamp(0, 1)
    wanted = (clips.shape[2], *size)
    return F.interpolate(kept, wanted, mode="trilinear", align_corners=True).clamp(0, 1)

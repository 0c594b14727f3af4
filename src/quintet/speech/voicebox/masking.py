"""Random draws of a training sample: time, noise, infill mask and condition dropout, by key."""

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.engine.keys import normal, uniform
from quintet.nn.alignment import inside
from quintet.speech.voicebox.config import VoiceBoxLossConfig

DROP_CONTEXT_TEXT = 0.1
"""Fraction of samples without text outside of the span, for voices without a transcript."""


class Draws(NamedTuple):
    time: Tensor
    """(b,) from 0 (noise) to 1 (data)."""
    noise: Tensor
    """(b, t, c)."""
    infill_mask: Tensor
    """(b, t) booleans: the span to infill."""
    text_dropped: Tensor
    """(b, t) booleans: frames whose character is dropped."""
    keys: Tensor
    """(b,): for the dropout of the duration model."""


def draw(
    keys: Tensor, num_frames: Tensor, size: tuple[int, int], losses: VoiceBoxLossConfig
) -> Draws:
    """Draws of samples of `num_frames` (b,) frames, padded to `size` (t, c)."""
    chance = uniform(keys, "hidden", (5,))
    low, high = losses.mask_fraction
    fraction = low + (high - low) * chance[:, 0]
    fraction = torch.where(chance[:, 2] < losses.drop_context, 1.0, fraction)
    infill_mask = span_mask(num_frames, fraction, chance[:, 1], size[0])
    outside = (chance[:, 4] < DROP_CONTEXT_TEXT)[:, None] & ~infill_mask
    text_dropped = (chance[:, 3] < losses.drop_text)[:, None] | outside
    noise = normal(keys, "noise", size)
    return Draws(uniform(keys, "time", ()), noise, infill_mask, text_dropped, keys)


def span_mask(num_frames: Tensor, fraction: Tensor | float, position: Tensor, size: int) -> Tensor:
    """(b, size) booleans: one span of a fraction of the frames, at a relative `position` (b,)."""
    width = (num_frames * fraction).round().clamp_min(1)
    start = (position * (num_frames - width + 1)).floor()
    index = torch.arange(size, device=num_frames.device)
    within = (index >= start[:, None]) & (index < (start + width)[:, None])
    return within & inside(num_frames, size)

"""What is random about a sample in training, drawn from its key alone."""

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.engine.keys import normal, uniform
from quintet.nn.alignment import inside
from quintet.speech.config import VoiceBoxLossConfig


class Draws(NamedTuple):
    time: Tensor
    """(b,) between 0, where all is noise, and 1."""
    noise: Tensor
    """(b, t, c)."""
    hole: Tensor
    """(b, t) booleans: the span that is hidden."""
    dropped: Tensor
    """(b, t) booleans: frames whose character is hidden."""


def draw(keys: Tensor, frames: Tensor, size: tuple[int, int], losses: VoiceBoxLossConfig) -> Draws:
    """For samples of so many `frames` (b,), padded to `size` (t, c)."""
    chance = uniform(keys, "hidden", (5,))
    low, high = losses.hidden
    share = low + (high - low) * chance[:, 0]
    share = torch.where(chance[:, 2] < losses.drop_context, 1.0, share)
    hole = span(frames, share, chance[:, 1], size[0])
    outside = (chance[:, 4] < losses.drop_context_text)[:, None] & ~hole
    dropped = (chance[:, 3] < losses.drop_text)[:, None] | outside
    noise = normal(keys, "noise", size)
    return Draws(uniform(keys, "time", ()), noise, hole, dropped)


def span(frames: Tensor, share: Tensor | float, place: Tensor, size: int) -> Tensor:
    """(b, size) booleans: one stretch of a share of the frames, at `place` (b,) between 0 and 1."""
    width = (frames * share).round().clamp_min(1)
    start = (place * (frames - width + 1)).floor()
    at = torch.arange(size, device=frames.device)
    within = (at >= start[:, None]) & (at < (start + width)[:, None])
    return within & inside(frames, size)

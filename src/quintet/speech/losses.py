"""What VoiceBox learns from, and how its terms become one number."""

from typing import NamedTuple

from torch import Tensor

from quintet.speech.config import VoiceBoxLossConfig
from quintet.speech.draws import Draws


class Learned(NamedTuple):
    """Sums over the batch, each to be divided by its count over the whole global batch."""

    flow: Tensor
    """Squared errors of the velocity, over hidden frames."""
    align: Tensor
    """Minus log-likelihoods of all alignments, to be divided by frames."""
    sharp: Tensor
    """Minus log-likelihoods of the best alignments, to be divided by frames."""
    duration: Tensor
    """Errors of log-durations of hidden characters, to be divided by characters."""


class Counts(NamedTuple):
    """What the sums of `Learned` are divided by."""

    hidden: Tensor
    frames: Tensor
    tokens: Tensor


def counts(draws: Draws, frames: Tensor, tokens: Tensor) -> Counts:
    return Counts(*(n.sum().float() for n in (draws.hole, frames, tokens)))


def total(found: Learned, over: Counts, losses: VoiceBoxLossConfig) -> Tensor:
    """0-dim: the losses under their weights."""
    return (
        found.flow / over.hidden
        + losses.align_weight * found.align / over.frames
        + losses.sharp_weight * found.sharp / over.frames
        + losses.duration_weight * found.duration / over.tokens
    )

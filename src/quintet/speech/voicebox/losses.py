"""Loss terms of VoiceBox and their weighted sum."""

from typing import NamedTuple

from torch import Tensor

from quintet.speech.voicebox.config import VoiceBoxLossConfig
from quintet.speech.voicebox.masking import Draws


class LossSums(NamedTuple):
    """Sums over the batch, each to be divided by its count over the global batch."""

    flow: Tensor
    """Squared errors of the velocity, over masked frames."""
    alignment: Tensor
    """Negative log-likelihood of all alignments (forward sum), per frame."""
    binarization: Tensor
    """Negative log-likelihood of the best alignment, per frame."""
    duration: Tensor
    """Absolute errors of the log-durations of masked characters, per character."""


class Counts(NamedTuple):
    """Denominators of `LossSums`."""

    masked: Tensor
    frames: Tensor
    tokens: Tensor


def counts(draws: Draws, num_frames: Tensor, num_tokens: Tensor) -> Counts:
    return Counts(*(n.sum().float() for n in (draws.infill_mask, num_frames, num_tokens)))


def means(sums: LossSums, over: Counts) -> dict[str, Tensor]:
    """0-dim: each term by its name."""
    return {
        "flow": sums.flow / over.masked,
        "alignment": sums.alignment / over.frames,
        "binarization": sums.binarization / over.frames,
        "duration": sums.duration / over.tokens,
    }


def total_loss(sums: LossSums, over: Counts, losses: VoiceBoxLossConfig) -> Tensor:
    """0-dim: the weighted sum."""
    return (
        sums.flow / over.masked
        + losses.alignment_weight * sums.alignment / over.frames
        + losses.binarization_weight * sums.binarization / over.frames
        + losses.duration_weight * sums.duration / over.tokens
    )

"""Loss terms of VoiceBox and their weighted sum."""

from typing import NamedTuple

from torch import Tensor

from quintet.speech.voicebox.masking import Draws

BINARIZATION_WEIGHT = 0.1
"""Per frame, relative to the flow and alignment losses."""
DURATION_WEIGHT = 0.1
"""Per character."""


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
    return {
        "flow": sums.flow / over.masked,
        "alignment": sums.alignment / over.frames,
        "binarization": sums.binarization / over.frames,
        "duration": sums.duration / over.tokens,
    }


def total_loss(sums: LossSums, over: Counts) -> Tensor:
    return (
        sums.flow / over.masked
        + sums.alignment / over.frames
        + BINARIZATION_WEIGHT * sums.binarization / over.frames
        + DURATION_WEIGHT * sums.duration / over.tokens
    )

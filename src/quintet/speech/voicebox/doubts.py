"""Which transcripts of a folder do not match their recordings, by the aligner of a trained model.

The best alignment of a recording with its own text costs less (negative log-likelihood) than those
with other texts of the folder of about the same length. The gap between the logarithms of the costs
is small where the text is wrong. Where it becomes suspicious follows from the folder: most of its
transcripts are right, and what wrong ones give is known from the other texts, one of which is
compared with the rest of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from sys import maxsize
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.engine.data.stream import DAMAGE
from quintet.engine.data.wire import to_floats
from quintet.engine.errors import RunError
from quintet.nn.alignment import binarization_loss
from quintet.shared.sampling import Device, Trained, with_progress
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets, SpeechFolder
from quintet.speech.text.characters import stack
from quintet.speech.voicebox.model import VoiceBox

OTHERS = 8
"""Other texts that a recording is compared with."""
NEAR = 16
"""They are drawn from so many shorter and longer texts."""
FEWEST = 30
"""Minimum number of recordings."""
PRIOR = 0.05
"""Share of wrong transcripts that is expected."""
LEAST = 1e-3
"""Added to costs: the only alignment with a text of one character costs nothing."""

Array = npt.NDArray[np.float64]


class Doubt(NamedTuple):
    name: str
    text: str
    log_odds: float
    """Log-odds that the text is wrong."""


@dataclass(frozen=True)
class Verdict:
    doubts: Sequence[Doubt]
    """All recordings, the most doubtful first."""
    power: float
    """Share of wrong texts that would be named, estimated from the other texts."""

    @property
    def named(self) -> list[Doubt]:
        return [doubt for doubt in self.doubts if doubt.log_odds > 0]


def doubtful(trained: Trained, folder: Path | str, device: Device = "auto") -> Verdict:
    """The transcripts of a folder, judged by the model of a run or an export."""
    model: VoiceBox = trained.model(device)
    if model.aligner is None or model.features.mel is None:
        raise RunError(f"{trained.path} has no aligner: it was trained without texts or on latents")
    rate = model.config.sample_rate
    every = SpeechDataConfig(sample_rate=rate, valid_limit=maxsize, exclude_held_out=False)
    buckets = Buckets(every, model.config)
    sides = [SpeechFolder(folder, buckets, split, 0) for split in ("train", "valid")]
    rows = [(side, index) for side in sides for index in range(len(side))]
    if len(rows) < FEWEST:
        raise RunError(
            f"{len(rows)} recordings are too few to tell which transcript is unusual; {FEWEST} do"
        )
    ids = [_ids(buckets, side, index) for side, index in rows]
    others = Others(ids)
    names: list[tuple[str, str]] = []
    scores: list[Array] = []
    for number, (side, index) in enumerate(with_progress(rows, what="listening")):
        try:
            item = side.keyed(index, None)
        except DAMAGE:
            continue
        score = scores_of(model, item["audio"], ids[number], others.near(number))
        if score is not None:
            names.append((side.name(index), item["text"]))
            scores.append(score)
    if not scores:
        raise RunError("no recording can be compared with other texts: all of them are alike")
    odds, power = log_odds(scores)
    doubts = (Doubt(*name, value) for name, value in zip(names, odds.tolist()))
    return Verdict(sorted(doubts, key=lambda doubt: -doubt.log_odds), power)


def _ids(buckets: Buckets, side: SpeechFolder, index: int) -> Tensor:
    """Ids of a text; empty for one that cannot be spoken, which is damage when it is read."""
    try:
        return buckets.ids(side.text(index), side.about(index).language)
    except ValueError:
        return torch.zeros(0, dtype=torch.int64)


class Others:
    """Other texts of about the same length."""

    def __init__(self, ids: Sequence[Tensor]) -> None:
        self.ids = ids
        self.order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        self.place = {number: place for place, number in enumerate(self.order)}

    def near(self, number: int) -> list[Tensor]:
        place, own = self.place[number], self.ids[number].tolist()
        window = self.order[max(0, place - NEAR) : place + NEAR + 1]
        distinct = {tuple(self.ids[other].tolist()) for other in window} - {tuple(own), ()}
        drawn = Random(number).sample(sorted(distinct), min(OTHERS, len(distinct)))
        return [torch.tensor(row) for row in drawn]


@torch.no_grad()
def scores_of(
    model: VoiceBox, audio: Tensor, own: Tensor, others: Sequence[Tensor]
) -> Array | None:
    """Minus the logarithm of the cost per frame of the own text, and of each of the others; None if
    there are not three to compare with."""
    (frames,) = model.extract([to_floats(audio)])
    # A text of more characters than frames has no alignment.
    rows = [own, *(row for row in others if len(row) <= len(frames))]
    if not 0 < len(own) <= len(frames) or len(rows) < 4:
        return None
    ids, num_tokens = (tensor.to(model.device) for tensor in stack(rows))
    num_frames = torch.full_like(num_tokens, len(frames))
    aligned = model.align(frames.expand(len(rows), -1, -1), num_frames, ids, num_tokens)
    costs = binarization_loss(*aligned).double() / len(frames)
    return -(costs + LEAST).log().cpu().numpy()


def log_odds(scores: Sequence[Array]) -> tuple[Array, float]:
    """Log-odds that each text is wrong, and the share of wrong texts with odds above 1."""
    right = np.array([row[0] - row[1:].mean() for row in scores])
    wrong = np.array([row[1] - row[2:].mean() for row in scores])
    center, width = _robust(right)
    wrong_center, wrong_width = _robust(wrong)

    def odds(gap: Array) -> Array:
        likely = _log_normal(gap, center, width) + log(1 - PRIOR)
        # A gap wider than usual is no sign of a wrong text, however rare.
        return np.where(
            gap >= center,
            -np.inf,
            _log_normal(gap, wrong_center, wrong_width) - likely + log(PRIOR),
        )

    return odds(right), float((odds(wrong) > 0).mean())


def _robust(values: Array) -> tuple[float, float]:
    """Median, and standard deviation by the median distance from it."""
    center = float(np.median(values))
    return center, 1.4826 * float(np.median(np.abs(values - center))) + 1e-6


def _log_normal(values: Array, center: float, width: float) -> Array:
    return -0.5 * ((values - center) / width) ** 2 - log(width)


def lines(verdict: Verdict) -> Iterator[str]:
    """The report of the doctor."""
    named, count = verdict.named, len(verdict.doubts)
    yield (
        f"transcripts: {len(named)} of {count} do not seem to match their recordings; "
        f"about {verdict.power:.0%} of wrong transcripts are found"
    )
    for doubt in named:
        yield f"  {doubt.log_odds:6.1f}  {doubt.name}: {doubt.text}"

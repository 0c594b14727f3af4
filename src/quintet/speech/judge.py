"""Which syllables are heard: a small classifier of built-in speech, fitted in closed form.

A syllable is a stretch of frames. Its shape in time and frequency is compared with those of some
thousand spoken ones, by a linear map to consonants and one to vowels (ridge regression). It is
fitted on utterances that are in no training and no held-out data, the same ones every time, and
knows nothing of any model.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.media import voices
from quintet.media.syllables import CONSONANTS, VOWELS
from quintet.speech.mels import SpeechMel

SEED = 1
"""Of its own utterances; the built-in data has seed 0."""
UTTERANCES = 160
MOMENTS, BANDS = 16, 25
"""A syllable is seen at so many moments, in so many bands."""
SHIFTS = (-0.02, 0.0, 0.02)
"""Seconds by which its ends are moved in fitting: whoever judges speech finds them only roughly."""
RIDGE = 3.0


class Span(NamedTuple):
    """A syllable, and its first frame and the one after its last."""

    text: str
    start: float
    end: float


def seen(log_mels: Tensor, spans: Sequence[Span]) -> Tensor:
    """(syllables, features): log-mels (m, t) about each, whatever its length and loudness."""
    bands = F.adaptive_avg_pool1d(log_mels.float().mT, BANDS)
    bands = (bands - bands.amax()).clamp_min(-12) / 4 + 1
    share = torch.linspace(-0.15, 1.0, MOMENTS, device=bands.device)
    starts = torch.tensor([[span.start] for span in spans], device=bands.device)
    ends = torch.tensor([[span.end] for span in spans], device=bands.device)
    at = (starts + share * (ends - starts) - 0.5).clamp(0, len(bands) - 1)
    low = at.floor().long()
    high, part = (low + 1).clamp_max(len(bands) - 1), (at - low)[..., None]
    return (bands[low] * (1 - part) + bands[high] * part).flatten(1)


def targets(texts: Sequence[str], device: torch.device) -> Tensor:
    """(syllables, consonants + vowels): ones in both places."""
    found = torch.zeros(len(texts), len(CONSONANTS) + len(VOWELS), device=device)
    for row, text in zip(found, texts):
        row[CONSONANTS.index(text[0])] = 1
        row[len(CONSONANTS) + VOWELS.index(text[1])] = 1
    return found


class Judge:
    """Says of each syllable whether it is heard as what it should be."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def hears(self, log_mels: Tensor, spans: Sequence[Span]) -> list[str]:
        """What each stretch of log-mels (m, t) sounds like."""
        if not spans:
            return []
        scores = F.pad(seen(log_mels.cpu(), spans), (0, 1), value=1.0) @ self.weights
        count = len(CONSONANTS)
        pairs = zip(scores[:, :count].argmax(1).tolist(), scores[:, count:].argmax(1).tolist())
        return [CONSONANTS[first] + VOWELS[second] for first, second in pairs]

    def recognised(self, log_mels: Tensor, spans: Sequence[Span]) -> tuple[int, int]:
        """How many are heard as they should be, and how many there are."""
        heard = self.hears(log_mels, spans)
        return sum(said == span.text for said, span in zip(heard, spans)), len(spans)


@lru_cache(maxsize=4)
def fitted(rate: int, n_fft: int, hop: int, bins: int) -> Judge:
    """For frames of this kind; a second or two, once in a process."""
    mel = SpeechMel(rate, n_fft, hop, bins)
    rows: list[Tensor] = []
    texts: list[str] = []
    for number in range(UTTERANCES):
        said = voices.compose(number, SEED)
        log_mels = mel(torch.from_numpy(voices.speak(said, rate))[None])[0]
        for shift in SHIFTS:
            spans = spans_of(said, rate / hop, shift)
            rows.append(seen(log_mels, spans))
            texts += [span.text for span in spans]
    x = F.pad(torch.cat(rows), (0, 1), value=1.0).double()
    y = targets(texts, x.device).double()
    ridge = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    return Judge(torch.linalg.solve(x.T @ x + ridge, x.T @ y).float())


def spans_of(said: voices.Utterance, frame_rate: float, shift: float = 0.0) -> list[Span]:
    """Where the syllables of built-in speech are."""
    return [
        Span(mark.text, (mark.start + shift) * frame_rate, (mark.end + shift) * frame_rate)
        for mark in said.syllables
    ]


def spans_in(text: str, durations: Sequence[float], start: float = 0.0) -> list[Span]:
    """Where the syllables of a text are, given how many frames each character lasts."""
    ends = list(accumulate(durations, initial=start))
    return [
        Span(text[at : at + 2], ends[at], ends[at + 2])
        for at in range(len(text) - 1)
        if text[at : at + 2] in voices.SYLLABLES
    ]

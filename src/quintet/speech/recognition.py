"""Syllable classifier for built-in speech: ridge regression, fitted in closed form.

The input is the time-frequency patch of a syllable; one linear map scores consonants, another
vowels. It is fitted on a fixed set of utterances that are in neither the training nor the
validation data, independent of any model.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.speech import voices
from quintet.speech.features import log_mel
from quintet.speech.syllables import CONSONANTS, VOWELS

SEED = 1
"""Seed of its utterances; the built-in data has seed 0."""
UTTERANCES = 160
MOMENTS, BANDS = 16, 25
"""Size of the patch of a syllable in time and frequency."""
SHIFTS = (-0.02, 0.0, 0.02)
"""Seconds by which spans are shifted in fitting: predicted spans are imprecise."""
RIDGE = 3.0


class Span(NamedTuple):
    """A syllable with its start and end, in frames."""

    text: str
    start: float
    end: float


def patches(log_mels: Tensor, spans: Sequence[Span]) -> Tensor:
    """(syllables, features): log-mels (m, t) of each, resampled to a fixed size and loudness."""
    bands = F.adaptive_avg_pool1d(log_mels.float().mT, BANDS)
    bands = (bands - bands.amax()).clamp_min(-12) / 4 + 1
    fraction = torch.linspace(-0.15, 1.0, MOMENTS, device=bands.device)
    starts = torch.tensor([[span.start] for span in spans], device=bands.device)
    ends = torch.tensor([[span.end] for span in spans], device=bands.device)
    position = (starts + fraction * (ends - starts) - 0.5).clamp(0, len(bands) - 1)
    low = position.floor().long()
    high, weight = (low + 1).clamp_max(len(bands) - 1), (position - low)[..., None]
    return (bands[low] * (1 - weight) + bands[high] * weight).flatten(1)


def targets(texts: Sequence[str], device: torch.device) -> Tensor:
    """(syllables, consonants + vowels): two one-hot vectors each."""
    one_hot = torch.zeros(len(texts), len(CONSONANTS) + len(VOWELS), device=device)
    for row, text in zip(one_hot, texts):
        row[CONSONANTS.index(text[0])] = 1
        row[len(CONSONANTS) + VOWELS.index(text[1])] = 1
    return one_hot


class SyllableClassifier:
    """Recognises syllables from their spans."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def classify(self, log_mels: Tensor, spans: Sequence[Span]) -> list[str]:
        """The most likely syllable of each span of log-mels (m, t)."""
        if not spans:
            return []
        scores = F.pad(patches(log_mels.cpu(), spans), (0, 1), value=1.0) @ self.weights
        count = len(CONSONANTS)
        pairs = zip(scores[:, :count].argmax(1).tolist(), scores[:, count:].argmax(1).tolist())
        return [CONSONANTS[first] + VOWELS[second] for first, second in pairs]

    def recognised(self, log_mels: Tensor, spans: Sequence[Span]) -> tuple[int, int]:
        """Number of correctly recognised syllables, and of all."""
        predicted = self.classify(log_mels, spans)
        return sum(text == span.text for text, span in zip(predicted, spans)), len(spans)


@lru_cache(maxsize=4)
def fitted(sample_rate: int, n_fft: int, hop_length: int, n_mels: int) -> SyllableClassifier:
    """The classifier for these features; takes a second or two, once per process."""
    mel = log_mel(sample_rate, n_fft, hop_length, n_mels)
    rows: list[Tensor] = []
    texts: list[str] = []
    for number in range(UTTERANCES):
        utterance = voices.compose(number, SEED)
        log_mels = mel(torch.from_numpy(voices.speak(utterance, sample_rate))[None])[0]
        for shift in SHIFTS:
            spans = spans_of(utterance, sample_rate / hop_length, shift)
            rows.append(patches(log_mels, spans))
            texts += [span.text for span in spans]
    x = F.pad(torch.cat(rows), (0, 1), value=1.0).double()
    y = targets(texts, x.device).double()
    ridge = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    return SyllableClassifier(torch.linalg.solve(x.T @ x + ridge, x.T @ y).float())


def spans_of(utterance: voices.Utterance, frame_rate: float, shift: float = 0.0) -> list[Span]:
    """Spans of the syllables of built-in speech."""
    return [
        Span(mark.text, (mark.start + shift) * frame_rate, (mark.end + shift) * frame_rate)
        for mark in utterance.syllables
    ]


def spans_in(text: str, durations: Sequence[float], start: float = 0.0) -> list[Span]:
    """Spans of the syllables of a text, given the frames of each character."""
    ends = list(accumulate(durations, initial=start))
    return [
        Span(text[at : at + 2], ends[at], ends[at + 2])
        for at in range(len(text) - 1)
        if text[at : at + 2] in voices.SYLLABLES
    ]

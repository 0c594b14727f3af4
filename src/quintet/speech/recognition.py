"""Syllable classifier for built-in speech: ridge regression, fitted in closed form.

The input is the time-frequency patch of a syllable; one linear map scores consonants, another
vowels. It is fitted on a fixed set of utterances that are in neither the training nor the
validation data, independent of any model.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.speech import voices
from quintet.speech.features import log_mel
from quintet.speech.syllables import CONSONANTS, VOWELS
from quintet.speech.voices import Mark

SEED = 1
"""Seed of its utterances; the built-in data has seed 0."""
UTTERANCES = 160
MOMENTS, BANDS = 16, 25
"""Size of the patch of a syllable in time and frequency."""
SHIFTS = (-0.02, 0.0, 0.02)
"""Seconds by which spans are shifted in fitting: predicted spans are imprecise."""
RIDGE = 3.0


def patches(log_mels: Tensor, spans: Sequence[Mark]) -> Tensor:
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


def recognised(weights: Tensor, log_mels: Tensor, spans: Sequence[Mark]) -> tuple[int, int]:
    """Number of correctly recognised syllables of log-mels (m, t), and of all."""
    if not spans:
        return 0, 0
    scores = F.pad(patches(log_mels.cpu(), spans), (0, 1), value=1.0) @ weights
    first, second = (part.argmax(1) for part in scores.split([len(CONSONANTS), len(VOWELS)], 1))
    predicted = [CONSONANTS[i] + VOWELS[j] for i, j in zip(first.tolist(), second.tolist())]
    return sum(text == span.text for text, span in zip(predicted, spans)), len(spans)


@lru_cache(maxsize=4)
def fitted(sample_rate: int, n_fft: int, hop_length: int, n_mels: int) -> Tensor:
    """Weights of the classifier for these features; takes a second or two, once per process."""
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
    first = torch.tensor([CONSONANTS.index(text[0]) for text in texts])
    second = torch.tensor([VOWELS.index(text[1]) for text in texts])
    one_hot = F.one_hot(first, len(CONSONANTS)), F.one_hot(second, len(VOWELS))
    y = torch.cat(one_hot, 1).double()
    ridge = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(x.T @ x + ridge, x.T @ y).float()


def spans_of(utterance: voices.Utterance, frame_rate: float, shift: float = 0.0) -> list[Mark]:
    """Syllables of built-in speech, in frames."""
    return [
        Mark(mark.text, (mark.start + shift) * frame_rate, (mark.end + shift) * frame_rate)
        for mark in utterance.syllables
    ]


def spans_in(text: str, durations: Sequence[float], start: float = 0.0) -> list[Mark]:
    """Syllables of a text in frames, given those of each character."""
    ends = list(accumulate(durations, initial=start))
    return [
        Mark(text[at : at + 2], ends[at], ends[at + 2])
        for at in range(len(text) - 1)
        if text[at : at + 2] in voices.SYLLABLES
    ]

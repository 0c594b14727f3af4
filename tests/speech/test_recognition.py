"""The classifier that syllables are recognised by."""

import pytest
import torch

from quintet.speech import recognition, voices
from quintet.speech.features import log_mel
from quintet.speech.recognition import fitted, recognised, spans_in, spans_of
from quintet.speech.voices import Mark

pytestmark = pytest.mark.usefixtures("well_heard_by_all")
RATE, HOP = 24_000, 256
SETTINGS = (RATE, 1024, HOP, 100)


def heard(number: int, wav: torch.Tensor | None = None) -> tuple[int, int]:
    output = voices.compose(number)
    sound = torch.from_numpy(voices.speak(output, RATE)) if wav is None else wav
    log_mels = log_mel(*SETTINGS)(sound[None])[0]
    return recognised(fitted(*SETTINGS), log_mels, spans_of(output, RATE / HOP))


def test_it_recognises_95_of_100_syllables_that_are_really_spoken():
    hits, count = (sum(values) for values in zip(*(heard(2 * n + 1) for n in range(30))))
    assert count > 200
    assert hits >= 0.95 * count


def test_it_recognises_next_to_none_in_another_utterance_or_in_noise():
    other = [torch.from_numpy(voices.speak(voices.compose(500 + n), RATE)) for n in range(12)]
    wrong, count = (sum(v) for v in zip(*(heard(2 * n + 1, w) for n, w in enumerate(other))))
    assert wrong < 0.12 * count
    noise = torch.randn(3 * RATE, generator=torch.Generator().manual_seed(0)) * 0.1
    wrong, count = (sum(v) for v in zip(*(heard(2 * n + 1, noise) for n in range(12))))
    assert wrong < 0.12 * count


def test_it_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recognition, "UTTERANCES", 20)
    first, second = (fitted.__wrapped__(*SETTINGS) for _ in range(2))
    assert torch.equal(first, second)


def test_syllables_of_a_text_are_found_by_its_durations():
    assert spans_in("ba so", [2, 3, 4, 5, 6]) == [Mark("ba", 0, 5), Mark("so", 9, 20)]
    assert spans_in("ba", [2, 3], start=10) == [Mark("ba", 10, 15)]

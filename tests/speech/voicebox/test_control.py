"""Pauses, lengths and rates of speech, from the text to the sound."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from harness import Said
from quintet.engine.models import ready
from quintet.media.audio import probe
from quintet.speech.text.markup import Marked, parse
from quintet.speech.voicebox.inference import Segment, Solver, segment_layout, speak_together
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voicebox.sample import Flags, solver_of
from speech.small import voicebox

Cli = Callable[..., Said]
QUICK = Solver(1, "euler", cond_scale=1.0)
READY = ready.FOLDER / "speech"


@pytest.fixture(scope="module")
def model() -> VoiceBox:
    return voicebox()


@pytest.fixture
def run(tmp_path: Path, model: VoiceBox) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def frames_of(model: VoiceBox, text: str | Marked, **keywords: Any) -> tuple[torch.Tensor, Any]:
    """Log-mels of speech, and its layout."""
    segments = model.segments([text], None, None, **keywords)
    (frames,), layout = model.generate(segments, QUICK)
    return frames, layout


def test_a_text_without_marks_is_spoken_as_before_to_the_bit(model: VoiceBox) -> None:
    texts = ["kitu so, la 3 < 4", "[1] ba"]
    segments = model.segments(texts, None, None)
    assert all(segment.timing is None for segment in segments)
    assert all(torch.equal(s.ids, model.encode(text)) for s, text in zip(segments, texts))
    # As it was written before there were marks.
    plain = segment_layout(model, [Segment(model.encode(text)) for text in texts])
    assert not plain.pauses
    rate = model.segments([parse(text, 1.0) for text in texts], None, None)
    again = segment_layout(model, rate)
    assert all(torch.equal(a, b) for a, b in zip(plain[:-1], again[:-1]))
    beside = segment_layout(model, model.segments([*texts, "a <break 1s> b"], None, None))
    assert torch.equal(beside.durations[:2, : plain.durations.shape[1]], plain.durations)


def test_a_longer_break_leaves_the_frames_beside_it_as_they_were(model: VoiceBox) -> None:
    plain, layout = frames_of(model, "kitu sola")
    broken, other = frames_of(model, "kitu <break 800ms> sola")
    assert torch.equal(layout.durations, other.durations)
    ((pause,),) = other.pauses
    assert pause.frames == 50, "of 16 ms"
    end = pause.start + pause.frames
    assert torch.equal(broken[: pause.start], plain[: pause.start])
    assert torch.equal(broken[end:], plain[pause.start + pause.solved :])
    silence = model.features.inverse(broken[None])[0].T[pause.start : end]
    assert torch.allclose(silence.exp(), torch.tensor(1e-7), rtol=1e-3)


def test_seconds_and_rate_are_of_the_whole_sound(model: VoiceBox) -> None:
    frames, _ = frames_of(model, "kitu <break 500ms> so [length 400ms]la[/length]", seconds=2.0)
    assert len(frames) == 125
    slow, fast = (frames_of(model, parse("kitu sola", rate))[0] for rate in (0.5, 2.0))
    assert len(slow) == pytest.approx(4 * len(fast), abs=4)


def test_durations_are_drawn_by_the_seed(model: VoiceBox) -> None:
    def durations(spread: float, seed: int) -> list[int]:
        texts = [parse("kitu sola bado", spread=spread)]
        segments = model.segments(texts, None, None, seed=seed)
        return segment_layout(model, segments).durations[0].tolist()

    assert durations(0.2, 1) == durations(0.2, 1) != durations(0.2, 2)
    assert durations(0.0, 1) == durations(0.0, 2)
    drawn = np.array([durations(0.2, seed) for seed in range(20)]).mean(0)
    assert np.abs(drawn / durations(0.0, 0) - 1).mean() < 0.15


def test_marks_are_heard_in_batches_after_voices_and_in_edits(model: VoiceBox) -> None:
    text = "kitu <break 800ms> so"
    voice = torch.randn(4_000) / 10
    for cond in (None, [voice]):
        more = {"cond": cond, "cond_texts": None, "seed": 0, "vocoder": None, **QUICK._asdict()}
        calls = [{"texts": [each], **more} for each in (text, "kitu so")]
        (marked,), (plain,) = speak_together(model, calls)
        (alone,) = model.sample(texts=[text], **more)
        assert marked.shape == alone.shape
        assert len(marked) - len(plain) > 0.5 * 8_000
    edited = model.edit(voice, 0.1, 0.2, text, solver=QUICK)
    assert len(edited) > 4_000 + 0.7 * 8_000


def test_the_command_keeps_marks_across_sentences(cli: Cli, run: Path, tmp_path: Path) -> None:
    sentences = ["Ba do ki tu. " * 12, "Ki tu ba do. " * 12]
    arguments = ("--steps", 1, "--method", "euler", "--seconds", 40)
    out = tmp_path / "a.wav"
    text = "<break 900ms>".join(sentences) + "[rate 2]ba[/rate]"
    assert cli("sample", run, "--text", text, *arguments, "--out", out).status == 0
    assert probe(out).seconds == pytest.approx(40, abs=0.0081)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", "ba <brake 1s>"], "'<brake 1s>' at character 4 is unknown"),
        (["--text", "{h ə}"], "this model reads letters"),
        (["--text", "ba", "--rate", 5], "--rate is 5; give 0.25 (slow) to 4 (fast)"),
        (["--text", "ba", "--duration-spread", 2], "--duration-spread is 2; give 0 to 0.5"),
        (["--text", "ba <break 2s> do", "--seconds", 1], "is less than the breaks"),
    ],
)
def test_the_command_refuses_with_a_sentence(
    cli: Cli, run: Path, tmp_path: Path, words: list[object], sentence: str
) -> None:
    assert sentence in cli("sample", run, *words, "--out", tmp_path / "x.wav").sentence


def longest_silence(sound: npt.NDArray[np.float32], rate: int) -> float:
    """Seconds between speech that is at most 40 dB below the loudest 5 ms."""
    window, hop = rate // 200, rate // 1000
    pieces = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), window)[::hop]
    power = np.square(pieces).mean(1)
    loud = np.flatnonzero(power >= power.max() * 1e-4)
    return float(np.diff(loud).max() - 1) * hop / rate + window / rate


@pytest.mark.slow
def test_pauses_are_heard_within_twenty_milliseconds() -> None:
    """Beside voiced consonants: the closure of a plosive is silent too."""
    model, solver = VoiceBox.from_pretrained(READY), solver_of(READY, Flags())
    errors: list[float] = []
    for number in range(100):
        random = Random(number)
        one, two, three = (random.choice("mnlr") + random.choice("aeiou") for _ in range(3))
        pause, space = random.randint(100, 900), " " * random.randint(0, 1)
        text = f"{one}{space}<break {pause}ms>{space}{two} {three}"
        (sound,) = model.sample(texts=[text], seed=number, **solver._asdict())
        errors.append(longest_silence(sound.numpy(), 24_000) - pause / 1000)
    assert sum(abs(error) <= 0.02 + 1e-9 for error in errors) == 100, errors


@pytest.mark.slow
def test_lengths_are_heard_within_twenty_milliseconds() -> None:
    """Of words between two pauses."""
    model, solver = VoiceBox.from_pretrained(READY), solver_of(READY, Flags())
    errors: list[float] = []
    for number in range(100):
        random = Random(number)
        word = "".join(random.choice("mnlr") + random.choice("aeiou") for _ in range(2))
        length = random.randint(200, 900)
        text = f"ma <break 300ms> [length {length}ms]{word}[/length] <break 300ms> lo"
        (sound,) = model.sample(texts=[text], seed=number, **solver._asdict())
        errors.append(heard_between(sound.numpy(), 24_000) - length / 1000)
    assert sum(abs(error) <= 0.02 + 1e-9 for error in errors) == 100, errors


def heard_between(sound: npt.NDArray[np.float32], rate: int) -> float:
    """Seconds from the end of the first pause of 0.2 s to the start of the next one."""
    window, hop = rate // 200, rate // 1000
    pieces = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), window)[::hop]
    power = np.square(pieces).mean(1)
    loud = np.flatnonzero(power >= power.max() * 1e-4)
    first, second, *_ = np.flatnonzero(np.diff(loud) > 0.2 * rate / hop)
    return float(loud[second] - loud[first + 1]) * hop / rate - window / rate

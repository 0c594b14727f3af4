"""Judges of speech: known answers; with pocketsphinx, jiwer and the weights, the outside ones."""

import json
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quintet.engine.errors import RunError
from quintet.files import reading_once
from quintet.judges import choosing, folders
from quintet.judges.media import speech
from quintet.judges.media.speech import Recording
from quintet.judges.voice import VoiceEncoder, window_starts
from quintet.judges.weights import digest_of_tensors
from quintet.media import pitch as yin
from quintet.media.audio import write_wav

RATE = 16_000
needs_packages = pytest.mark.skipif(
    any(find_spec(name) is None for name in speech.PACKAGES),
    reason="pocketsphinx and jiwer are not installed (quintet[judges])",
)


def tone(hz, seconds=1.0, rate=RATE):
    """A tone with harmonics; `hz` may be a course."""
    count = round(seconds * rate)
    course = np.interp(np.linspace(0, 1, count), np.linspace(0, 1, np.size(hz)), np.atleast_1d(hz))
    phase = 2 * np.pi * np.cumsum(course) / rate
    return sum(np.sin(k * phase) / k for k in range(1, 6)).astype(np.float32) * 0.2


def noise(seconds=1.0, size=0.2):
    wav = np.random.default_rng(0).normal(size=round(seconds * RATE)) * size
    return wav.astype(np.float32)


def recording(wav, text="", rate=RATE):
    return Recording(np.asarray(wav, np.float32), rate, text, Path("a.wav"))


def value(judge, reference, output):
    (row,) = judge().rows([recording(reference)], [recording(output)])
    return float(row)


# -- pitch and duration ---------------------------------------------------------------------


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
@pytest.mark.parametrize("hz", [75.0, 123.4, 220.0, 440.0])
def test_the_pitch_of_a_tone_is_its_frequency(hz, rate):
    found = yin.pitch(tone(hz, rate=rate), rate)
    assert (found > 0).all()
    assert np.abs(1200 * np.log2(found / hz)).max() < 5


def test_noise_and_silence_have_no_pitch():
    assert (yin.pitch(noise(), RATE) > 0).mean() < 0.05
    assert not yin.pitch(np.zeros(RATE), RATE).any()
    assert not yin.pitch(np.zeros(10), RATE).any()
    half = np.concatenate([tone(200), 1e-4 * tone(200)])
    assert (yin.pitch(half, RATE)[110:] == 0).all()


def test_the_normalised_difference_is_equation_8():
    frames = np.random.default_rng(0).normal(size=(2, 60))
    window, longest = 20, 30
    found = yin._normalised_difference(frames, window, longest)
    for frame, row in zip(frames, found):
        d = [np.square(frame[:window] - frame[t : t + window]).sum() for t in range(longest + 1)]
        expected = [1.0] + [d[t] * t / sum(d[1 : t + 1]) for t in range(1, longest + 1)]
        np.testing.assert_allclose(row, expected, rtol=1e-10)


def test_log_mels_are_apart_by_the_logarithm_of_a_gain():
    wav = tone(200, 2) + noise(2, 0.01)
    assert value(speech.MelError, wav, wav) == 0
    assert value(speech.MelError, wav, 0.5 * wav) == pytest.approx(np.log(2), rel=1e-3)
    assert value(speech.MelError, wav, wav[: len(wav) // 2]) > 0.1
    with pytest.raises(RunError, match="mel needs 16000 Hz"):
        speech.MelError().rows([recording(wav, rate=8000)], [recording(wav)])


def test_pitch_is_apart_by_as_much_as_it_was_raised():
    glide = np.array([120.0, 180.0, 140.0])
    assert value(speech.Pitch, tone(glide), tone(glide)) == 0
    for cents in (30, 100, 700):
        raised = tone(glide * 2 ** (cents / 1200))
        assert value(speech.Pitch, tone(glide), raised) == pytest.approx(cents, abs=2)


def test_a_stretched_course_of_pitch_is_the_same_course():
    glide = np.array([120.0, 180.0, 140.0])
    stretched = value(speech.Pitch, tone(glide), tone(glide, 1.5))
    assert stretched < 15 < value(speech.Pitch, tone(glide), tone(glide[::-1], 1.5))


def test_without_a_frame_voiced_in_both_the_error_is_an_octave():
    assert value(speech.Pitch, tone(150), noise()) == 1200
    assert yin.cents_apart(np.array([100.0, 0]), np.array([0, 100.0])) is None


def test_a_recording_without_a_voiced_frame_equals_itself():
    assert value(speech.Pitch, noise(), noise()) == 0


def test_duration_is_relative_to_the_reference_at_any_rate():
    assert value(speech.Duration, tone(100, 2), tone(100, 2)) == 0
    assert value(speech.Duration, tone(100, 2), tone(100, 3)) == pytest.approx(0.5)
    assert value(speech.Duration, tone(100, 2), tone(100, 1)) == pytest.approx(0.5)
    pair = recording(np.ones(16_000)), recording(np.ones(24_000), rate=24_000)
    assert speech.Duration().rows(*([one] for one in pair)) == 0


# -- words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World!", "hello world"),
        ("  It’s  a\nwell-known 'fact' — no?", "its a well known fact no"),
        ("3 cats cost $5.", "3 cats cost 5"),
        ("E\u0301te\u0301", "\u00e9t\u00e9"),
        ("...", ""),
    ],
)
def test_texts_are_compared_without_case_and_punctuation(text, expected):
    assert speech.normalised(text) == expected


def test_the_rate_is_of_all_words_and_no_mean_of_rates():
    rows = np.array([[1.0, 1.0], [0.0, 9.0]])
    assert speech.WordErrors().mean(rows) == 0.1


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(speech, "PACKAGES", ("no_such_package",))
    problem = speech.WordErrors().problem()
    assert problem == "needs no_such_package: pip install 'quintet[judges]'"


@needs_packages
def test_errors_are_substitutions_deletions_and_insertions():
    count = speech.WordErrors().count
    assert count("a b c", "a b c") == (0, 3)
    assert count("a b c", "a x c d") == (2, 3)
    assert count("a b c", "") == (3, 3)
    assert speech.CharacterErrors().count("abc d", "abd d") == (1, 5)


@needs_packages
def test_a_reference_without_text_is_refused():
    with pytest.raises(RunError, match="no text to compare"):
        speech.WordErrors().rows([recording(noise(), " ... ")], [recording(noise())])


@needs_packages
def test_the_recogniser_hears_each_recording_by_itself():
    """Its means of features, by which words change, are of no earlier recording."""
    recogniser = speech._Recogniser()
    hum, hiss = recording(tone(120, 0.5)), recording(noise(0.5))

    def means(one):
        recogniser.heard.clear()
        recogniser.text(one)
        return recogniser.decoder.get_cmn(False)

    first = means(hum)
    assert means(hiss) != first
    assert means(hum) == first


@needs_packages
def test_a_tone_says_nothing_of_a_sentence():
    judge = speech.WordErrors()
    assert judge.problem() is None
    rows = judge.rows([recording(noise(), "Good morning, everyone.")], [recording(tone(150))])
    assert rows[0, 1] == 3
    assert judge.mean(rows) >= 1
    assert judge.facts()["recogniser"].startswith("pocketsphinx 5")
    with pytest.raises(RunError, match="16000 Hz"):
        judge.rows([recording(noise(), "a")], [recording(noise(), rate=8000)])


# -- voice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "starts"),
    [
        (1, [0]),
        (25_600, [0]),
        (25_600 + 77 * 160, [0, 77]),
        (43_000, [0, 77]),
        (50_000, [0, 77, 154]),
    ],
)
def test_windows_are_those_of_the_original(samples, starts):
    assert window_starts(samples) == starts


@pytest.fixture
def weights(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    speech._encoder.cache_clear()
    yield tmp_path
    speech._encoder.cache_clear()


def test_without_weights_a_sentence_says_where_they_go(weights):
    problem = speech.Speaker().problem()
    assert problem is not None
    assert "resemblyzer" in problem
    assert str(weights) in problem


@pytest.mark.parametrize(
    "suffix",
    # A .pt file takes a process; it is read by the code of test_weights.py.
    ["safetensors", pytest.param("pt", marks=pytest.mark.slow)],
)
def test_voices_are_compared_with_weights_of_either_kind(weights, suffix):
    torch.manual_seed(0)
    state = VoiceEncoder().state_dict()
    if suffix == "pt":
        torch.save({"step": 1, "model_state": state}, weights / "resemblyzer.pt")
    else:
        save_file(state, weights / "resemblyzer.safetensors")
    judge = speech.Speaker()
    assert judge.problem() is None
    assert value(speech.Speaker, tone(120, 2), tone(120, 2)) == pytest.approx(1)
    assert value(speech.Speaker, tone(120, 2), noise(2)) < 1 - 1e-6
    # Quiet recordings are raised, loud ones stay.
    assert value(speech.Speaker, tone(120, 2) * 0.05, tone(120, 2) * 0.01) == pytest.approx(1)
    assert len(judge.facts()["weights"]) == 16


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="resemblyzer is not installed")
def test_voices_are_as_similar_as_the_package_says(weights):
    """Known answers: the package's own code, resemblyzer 0.1.4 with librosa 0.11."""
    spec = find_spec("resemblyzer")
    assert spec is not None
    assert spec.origin is not None
    state = torch.load(Path(spec.origin).parent / "pretrained.pt", "cpu", weights_only=True)
    torch.save(state, weights / "resemblyzer.pt")
    high, low = tone([200, 250, 220], 1), tone([120, 180, 140], 3.3)
    hiss = noise(2, 0.01)
    assert value(speech.Speaker, low, high) == pytest.approx(0.705797, abs=1e-5)
    assert value(speech.Speaker, low, hiss) == pytest.approx(0.542826, abs=1e-5)
    assert value(speech.Speaker, high, hiss) == pytest.approx(0.556596, abs=1e-5)


def test_the_digest_of_weights_is_of_their_numbers():
    state = {"b": torch.arange(3.0), "a": torch.ones(2, 2)}
    digest = digest_of_tensors(state)
    assert digest == digest_of_tensors(dict(reversed(state.items())))
    assert digest != digest_of_tensors({**state, "a": torch.ones(4)})
    assert digest != digest_of_tensors({**state, "b": torch.arange(3.0) + 1})


# -- files ----------------------------------------------------------------------------------


def test_transcripts_are_read_from_metadata_or_from_beside(tmp_path):
    for name in ("a", "b", "c", "clips/d"):
        path = tmp_path / f"{name}.wav"
        path.parent.mkdir(exist_ok=True)
        write_wav(path, tone(100, 0.1), RATE)
    (tmp_path / "a.txt").write_text("beside\n")
    assert speech.read(tmp_path / "a.wav").text == "beside"
    lines = ['{"file_name": "b.wav", "text": "in metadata"}']
    lines.append('{"file_name": "clips/d.wav", "text": "one above"}')
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    with reading_once():
        texts = [speech.read(tmp_path / f"{name}.wav").text for name in ("a", "b", "c", "clips/d")]
    assert texts == ["beside", "in metadata", "", "one above"]


def test_recordings_are_resampled_as_asked(tmp_path):
    write_wav(tmp_path / "a.wav", tone(100, 0.5, 24_000), 24_000)
    one = speech.read(tmp_path / "a.wav")
    assert (one.rate, len(one.wav), one.text) == (16_000, 8000, "")
    assert len(speech.read(tmp_path / "a.wav", 8000).wav) == 4000
    assert "16000 Hz" in speech.preparation()["rate"]


def test_the_own_speaker_is_told_from_all_others_by_folder_or_metadata(
    weights, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    save_file(VoiceEncoder().state_dict(), weights / "resemblyzer.safetensors")
    sounds = {"ann": tone(120, 2), "bob": noise(2)}
    for kind, exchanged in (("recorded", False), ("spoken", True)):
        for name, wav in sounds.items():
            for number in range(2):
                other = sounds["bob" if name == "ann" else "ann"] if exchanged and number else wav
                path = tmp_path / kind / name / f"{number}.wav"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_wav(path, other * (1 - 0.1 * number), speech.RATE)
    names = {
        kind: folders.files_in(tmp_path / kind, speech.SUFFIXES) for kind in ("recorded", "spoken")
    }
    ask = lambda kind: (
        folders.judged([speech.OwnVoice()], names["recorded"], names[kind], speech.read, {})[
            "own_voice"
        ].value
    )
    assert ask("recorded") == 1  # all four in one group
    monkeypatch.setattr(folders, "CHUNK", 1)
    assert ask("spoken") == 0.5
    rows = [
        {"file_name": f"{n}/{i}.wav", "text": "a", "speaker": "c"} for n in sounds for i in (0, 1)
    ]
    metadata = tmp_path / "recorded/metadata.jsonl"
    metadata.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert speech.read(tmp_path / "recorded/ann/0.wav").speaker == "c"
    with pytest.raises(RunError, match="two speakers"):
        ask("recorded")
    assert "own_voice" not in {judge.name for judge in choosing.chosen("speech")[0]}


def test_many_outputs_of_many_speakers_fit_into_memory(monkeypatch):
    """Voices without each output's own reference, for all outputs at once, would take 0.4 GB."""
    draw = np.random.default_rng(0)
    speakers = np.arange(1000) % 200
    voices = draw.normal(size=(200, 256))[speakers]
    judge = speech.OwnVoice()
    monkeypatch.setattr(judge, "embed", lambda one: one.wav / np.linalg.norm(one.wav))
    sets = [
        [Recording(wav, RATE, "", Path("a"), str(name)) for wav, name in zip(rows, speakers)]
        for rows in (voices + draw.normal(size=voices.shape) for _ in range(2))
    ]
    tracemalloc.start()
    rows = judge.rows(*sets)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6
    assert rows.mean() > 0.99
    assert judge.rows(sets[0], sets[1][::-1]).mean() < 0.05

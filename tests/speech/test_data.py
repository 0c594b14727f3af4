"""Recordings with texts: what a sample is, what is refused, and how batches are made."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.engine.config import ConfigError
from quintet.engine.data.plans import LengthPlan, Request
from quintet.engine.data.stream import Samples
from quintet.media.audio import write_wav
from quintet.media.errors import BadFile
from quintet.speech import voices
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import (
    Buckets,
    BuiltinVoices,
    SpeechFolder,
    check,
    collate,
    length_plan,
    open_data,
)
from quintet.speech.text.characters import FIRST, PAD, UNKNOWN, byte_ids, clean, stack
from quintet.speech.voicebox.config import VoiceBoxConfig
from speech.small import DATA, MODEL, small_buckets, utter

RATE = 8_000


def speech(seconds: float, rate: int = RATE) -> np.ndarray:
    utterance = utter("bakitu")
    actual = voices.speak(utterance, rate)
    return np.resize(actual, round(seconds * rate))


def put(folder: Path, name: str, seconds: float = 0.5, text: str | None = None, **how: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_wav(path, speech(seconds, how.get("rate", RATE)), how.get("rate", RATE))
    if text is not None:
        path.with_suffix(".txt").write_text(text, encoding="utf-8")


def opened(folder: Path, split: Any = "train", seed: int = 0, **changes: Any) -> SpeechFolder:
    return SpeechFolder(folder, small_buckets(**changes), split, seed)


def holding(folder: Path, name: str) -> tuple[SpeechFolder, int]:
    """Data for training in which this recording is, and where."""
    for seed in range(50):
        data = opened(folder, seed=seed)
        names = [data.name(index) for index in range(len(data))]
        if name in names:
            return data, names.index(name)
    raise AssertionError(name)


def everything(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    sides = [opened(folder, split, **changes) for split in ("train", "valid")]
    return {d.name(i): d.keyed(i, None) for d in sides for i in range(len(d))}


# -- texts ----------------------------------------------------------------------------------------


def test_every_script_and_every_digit_has_ids():
    for text in ("ka 42", "žluť", "こんにちは", "Привет, мир!"):
        assert len(byte_ids(clean(text))) == len(text.encode("utf-8"))
    assert byte_ids("a", edges=True) == [FIRST + b for b in b" a "]


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "Zs", "M")), max_size=40))
@settings(max_examples=50, deadline=None)
def test_a_clean_text_is_clean_and_its_ids_are_in_range(text):
    try:
        actual = clean(text)
    except ValueError:
        assert not "".join(text.split())
        return
    assert clean(actual) == actual
    assert "  " not in actual
    ids = byte_ids(actual)
    assert min(ids) >= FIRST
    assert bytes(i - FIRST for i in ids).decode("utf-8") == actual


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ba 🙂", "a symbol"),
        ("ba\x07", "control character"),
        (" \n ", "empty"),
        ("\u200d", "empty"),
        ("ba\ue000", "private"),
    ],
)
def test_what_nobody_can_speak_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        clean(text)


def test_rows_of_ids_are_padded():
    ids, counts = stack([torch.tensor(byte_ids("ba")), torch.tensor([UNKNOWN])], 4)
    assert counts.tolist() == [2, 1]
    assert ids[1].tolist() == [UNKNOWN, PAD, PAD, PAD]


# -- where texts are found ------------------------------------------------------------------------


def test_texts_stand_in_metadata(tmp_path):
    put(tmp_path, "a/one.wav")
    put(tmp_path, "two.wav")
    rows = [
        {"file_name": "a/one.wav", "text": " ba  ki "},
        {"file_name": "two.wav", "text": "so", "speaker": "me"},
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    actual = everything(tmp_path)
    assert {name: item["text"] for name, item in actual.items()} == {
        "a/one.wav": "ba ki",
        "two.wav": "so",
    }
    assert actual["two.wav"]["audio"].dtype == torch.int16


@pytest.mark.parametrize("key", ["LJ1", "LJ1.wav", "wavs/LJ1.wav"])
def test_texts_stand_in_a_table_like_that_of_ljspeech(tmp_path, key):
    put(tmp_path, "wavs/LJ1.wav")
    table = f'{key}|As "written", 2|as written two\nLJ9|gone|gone\n'
    (tmp_path / "metadata.csv").write_text(table, encoding="utf-8")
    assert everything(tmp_path)["wavs/LJ1.wav"]["text"] == "as written two"


def test_texts_stand_in_a_table_with_a_header(tmp_path):
    put(tmp_path, "one.wav")
    (tmp_path / "metadata.csv").write_text("file_name,text\none.wav,ba\n", encoding="utf-8")
    assert everything(tmp_path)["one.wav"]["text"] == "ba"


def test_texts_stand_beside(tmp_path):
    put(tmp_path, "one.wav", text="ba\nki\n")
    assert everything(tmp_path)["one.wav"]["text"] == "ba ki"


def test_recordings_without_a_text_are_counted_and_left_out(tmp_path):
    put(tmp_path, "one.wav", text="ba")
    put(tmp_path, "two.wav", text="ba")
    put(tmp_path, "x.wav")
    with pytest.warns(UserWarning, match=r"1 of 3 .* no text, x.wav is the first"):
        assert len(everything(tmp_path)) == 2
    with pytest.raises(BadFile, match="1 of 3 recordings have no text"):
        opened(tmp_path, max_missing=0.2)
    (tmp_path / "one.txt").unlink()
    (tmp_path / "two.txt").unlink()
    with pytest.raises(BadFile, match=r"metadata.jsonl"):
        opened(tmp_path)


def test_a_line_of_a_table_without_a_text_is_named(tmp_path):
    put(tmp_path, "a.wav")
    (tmp_path / "metadata.csv").write_text("a|ba\nb\n", encoding="utf-8")
    with pytest.raises(BadFile, match="line 2"):
        opened(tmp_path)


# -- what cannot be used --------------------------------------------------------------------------


def damaged(folder: Path, kind: str) -> str:
    """A recording that cannot be used, and a part of the sentence that says so."""
    path = folder / "bad.wav"
    put(folder, "bad.wav", text="ba")
    if kind == "silent":
        write_wav(path, np.zeros(4_000, np.float32), RATE)
        return "silent"
    if kind == "no number":
        import soundfile

        soundfile.write(path, np.full(4_000, np.nan, np.float32), RATE, subtype="FLOAT")
        return "not finite"
    path.with_suffix(".txt").write_text(" ", encoding="utf-8")
    return "is empty"


@pytest.mark.parametrize("kind", ["silent", "no number", "empty"])
def test_what_cannot_be_used_is_skipped_and_named(tmp_path, kind):
    for name in ("good.wav", "fair.wav", "fine.wav"):
        put(tmp_path, name, text="ba")
    message = damaged(tmp_path, kind)
    data, index = holding(tmp_path, "bad.wav")
    with pytest.raises(BadFile, match=message):
        data.keyed(index, None)
    item, _, _, notes = Samples(data, seed=0)[Request(0, index)]
    assert item["text"] == "ba", "another one takes its place"
    assert notes[0].name == "bad.wav"
    assert message in notes[0].reason
    actual = dict(check(tmp_path, SpeechDataConfig(**DATA)))
    assert actual[tmp_path / "good.wav"] is None
    assert message in (actual[tmp_path / "bad.wav"] or "")


OUTSIDE = {
    "emoji": (0.5, "ba 🙂", "a symbol; write it as words"),
    "long": (3.0, "ba", "more than max_seconds = 2 (3); cut the file or raise max_seconds"),
    "short": (0.01, "ba", "less than min_seconds = 0.1 (0.01); remove it"),
    "wordy": (0.5, "ba" * 40, "more than text_length = 24 (80); shorten recording and text"),
    "fast": (0.12, "ba" * 10, "more than one per frame; is it the right text?"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_is_outside_of_the_range_is_in_neither_split_and_no_damage(tmp_path, kind, capfd):
    for name in ("good.wav", "fair.wav", "fine.wav"):
        put(tmp_path, name, text="ba")
    before = [opened(tmp_path, split) for split in ("train", "valid")]
    seconds, text, line = OUTSIDE[kind]
    for name in ("far1.wav", "far2.wav"):
        put(tmp_path, name, seconds=seconds, text=text)
    for split, same in zip(("train", "valid"), before):
        assert opened(tmp_path, split)._names == same._names
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1, "one line for both files and both splits"
    assert f"2 of 5 recordings left out: {line}" in said[0]
    problem = dict(check(tmp_path, SpeechDataConfig(**DATA)))[tmp_path / "far1.wav"]
    assert problem is not None
    assert problem.outside is not None


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_recordings_of_any_rate_come_out_at_the_models(tmp_path, rate):
    put(tmp_path, "a.wav", seconds=1.0, text="ba", rate=rate)
    (item,) = everything(tmp_path).values()
    assert len(item["audio"]) == RATE


@pytest.mark.parametrize("rate", [RATE, 2 * RATE])
def test_a_recording_is_read_once_and_then_the_same(tmp_path, rate):
    put(tmp_path, "a.wav", text="ba do", rate=rate)
    source, index = holding(tmp_path, "a.wav")
    first = source.keyed(index, None)["audio"]
    source.path(index).write_bytes(b"")
    again = source.keyed(index, None)["audio"]
    assert first.dtype == again.dtype == (torch.int16 if rate == RATE else torch.float32)
    assert torch.equal(first, again)


def test_channels_are_mixed(tmp_path):
    import soundfile

    both = np.stack([speech(0.5), np.zeros(4_000)], 1)
    soundfile.write(tmp_path / "a.wav", both, RATE)
    (tmp_path / "a.txt").write_text("ba", encoding="utf-8")
    (item,) = everything(tmp_path).values()
    assert np.allclose(item["audio"], speech(0.5) / 2, atol=1e-3)


def test_a_setting_that_cannot_be_says_why():
    with pytest.raises(ConfigError, match="min_seconds"):
        SpeechDataConfig(min_seconds=20.0)


# -- built-in speech ------------------------------------------------------------------------------


def test_built_in_speech_fits_and_has_its_marks():
    data = open_data(None, small_buckets(), "train", 0)
    assert isinstance(data, BuiltinVoices)
    for index in range(10):
        item = data.keyed(index, None)
        assert len(item["audio"]) <= 2.0 * RATE
        assert len(item["ends"]) == len(item["text"]) <= 24
        assert item["ends"][-1] * RATE == pytest.approx(len(item["audio"]), abs=2)
        assert data.size(index) == (1 + len(item["audio"]) // 128, len(item["text"]))


def test_built_in_speech_for_training_and_held_out_never_meet():
    sides = (BuiltinVoices(small_buckets(), split) for split in ("train", "valid"))
    texts = [{side.text(index) for index in range(len(side))} for side in sides]
    assert not texts[0] & texts[1]


def test_built_in_speech_that_cannot_fit_is_refused():
    with pytest.raises(ValueError, match="raise them"):
        BuiltinVoices(small_buckets(text_length=5), "train").utterance(0)


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_is_padded_to_one_of_a_few_sizes():
    buckets = small_buckets()
    data = BuiltinVoices(buckets, "train")
    shapes = set()
    for index in range(0, 40, 2):
        items = [data.keyed(i, None) for i in (index, index + 1)]
        batch = collate(items, buckets)
        audio = batch["audio"].values
        shapes.add((audio.shape, batch["ids"].shape))
        assert buckets.num_frames(audio.shape[1]) == batch["ids"].shape[1] // 8 * buckets.frames
        for row, item in enumerate(items):
            length = len(item["audio"])
            assert torch.equal(audio[row, :length], item["audio"])
            assert not audio[row, length:].any()
            assert batch["num_tokens"][row] == len(item["text"])
    assert len(shapes) <= 3


def test_a_sample_without_a_text_is_of_unknown_text():
    batch = collate([{"audio": torch.ones(900), "text": None}], small_buckets())
    assert batch["ids"][0, 0] == UNKNOWN
    assert batch["num_tokens"].tolist() == [1]


def walk(plan: LengthPlan, count: int, steps: int) -> list[list[list[Any]]]:
    position, actual = 0, []
    for _ in range(steps):
        actual.append(plan.micro_batches(position, count))
        position += sum(map(len, actual[-1]))
    return actual


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_every_sample_comes_in_every_epoch(buckets, seed):
    plan = LengthPlan(buckets, seed, budget=8)
    batches, starts = plan._make_span(3, 1)
    mine = [r.sample for batch in batches for r in batch if r.epoch == 3]
    assert sorted(mine) == list(range(len(buckets)))
    extra = sum(r.epoch > 3 for batch in batches for r in batch)
    assert extra < plan.samples(max(buckets), 1)
    assert starts[-1] == len(buckets) + extra == plan._make_span(0, 1)[1][-1]


@given(st.lists(st.integers(1, 4), min_size=30, max_size=60))
@settings(max_examples=20, deadline=None)
def test_work_stays_within_the_budget_and_shapes_are_few(buckets):
    plan = LengthPlan(buckets, 0, budget=16)
    shapes = set()
    for (batch,) in walk(plan, 1, 12):
        largest = max(buckets[r.sample] for r in batch)
        assert len(batch) * largest <= 4 * 4
        shapes.add(len(batch))
    assert len(shapes) <= len(set(buckets))


def test_the_global_order_is_the_same_however_it_is_divided():
    buckets = [1 + i * 7 % 4 for i in range(50)]
    whole = walk(LengthPlan(buckets, 0, budget=32), 1, 9)
    for count in (2, 4):
        parts = walk(LengthPlan(buckets, 0, budget=32 // count), count, 9)
        for (one,), several in zip(whole, parts):
            assert one == [r for batch in several for r in batch]
            assert max(map(len, several)) - min(map(len, several)) <= 1


def test_less_than_a_quarter_of_a_batch_is_padding():
    config = SpeechDataConfig(max_seconds=5.0, text_length=48, buckets=4, builtin_count=400)
    buckets = Buckets(config, VoiceBoxConfig(edges=False))
    data = BuiltinVoices(buckets, "train")
    plan = length_plan(data, buckets, 0, 16)
    heard = padded = 0
    for (batch,) in walk(plan, 1, 12):
        sizes = [data.size(r.sample) for r in batch]
        heard += sum(frames for frames, _ in sizes)
        padded += len(batch) * buckets.frames * max(buckets.index(*size) for size in sizes)
    assert heard > 0.75 * padded


def test_a_folder_is_planned_by_its_headers(tmp_path):
    for number in range(6):
        put(tmp_path, f"{number}.wav", seconds=0.3 + 0.3 * number, text="ba")
    put(tmp_path, "z.wav", text="ba")
    (tmp_path / "z.wav").write_bytes(b"RIFF, so to speak")
    data, last = holding(tmp_path, "z.wav")
    plan = length_plan(data, data.buckets, 0, 2)
    sizes = [data.size(index)[0] for index in range(len(data))]
    assert plan.lengths == [-(-frames // data.buckets.frames) for frames in sizes]
    assert len(set(plan.lengths)) == 3
    assert plan.lengths[last] == 3, "what cannot be used counts as the largest"


def test_held_out_recordings_are_none_of_those_for_training(tmp_path):
    for number in range(10):
        put(tmp_path, f"{number}.wav", text="ba")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sides = [opened(tmp_path, split, valid_fraction=0.3) for split in ("train", "valid")]
    names = [{d.name(i) for i in range(len(d))} for d in sides]
    assert names[0] | names[1] == {f"{n}.wav" for n in range(10)}
    assert not names[0] & names[1]
    assert MODEL["sample_rate"] == RATE

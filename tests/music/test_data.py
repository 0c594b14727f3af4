"""Sounds with captions: what a sample is, what is left out, and how batches are made."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.engine.config import ConfigError
from quintet.engine.data.plans import CountPlan, LengthPlan, Request
from quintet.engine.data.stream import Samples
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.media.audio import write_wav
from quintet.media.errors import BadFile
from quintet.music import tunes
from quintet.music.config import MusicDataConfig
from quintet.music.data import (
    BuiltinTunes,
    MusicFolder,
    check,
    collate,
    length_plan,
    open_data,
    padded_length,
    text_length,
)
from quintet.music.own_data import OwnSounds
from quintet.shared.audio_cache import AudioCache

SMALL = MusicDataConfig(
    sample_rate=8_000,
    seconds=1.0,
    min_seconds=0.4,
    valid_limit=40,
    builtin_count=60,
    valid_fraction=0.2,
)


def tone(seconds: float, rate: int = 8_000, hertz: float = 300) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def describe(folder: Path, **rows: Any) -> None:
    lines = [{"file_name": name.replace("_", "."), **row} for name, row in rows.items()]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty sounds, each longer and each with a caption."""
    for number in range(20):
        path = tmp_path / f"part{number % 2}"
        path.mkdir(exist_ok=True)
        sound = tone(0.2 + 0.1 * number) * np.linspace(0.5, 1, 1600 + 800 * number)
        write_wav(path / f"{number:02}.wav", sound, 8_000)
        (path / f"{number:02}.txt").write_text(f"sound  number\n{number}\n")
    return tmp_path


def both(folder: Path, config: MusicDataConfig = SMALL) -> tuple[MusicFolder, MusicFolder]:
    return MusicFolder(folder, config, "train", 0), MusicFolder(folder, config, "valid", 0)


def everything(folder: Path, config: MusicDataConfig = SMALL) -> dict[str, dict[str, Any]]:
    return {d.name(i): d.keyed(i, None) for d in both(folder, config) for i in range(len(d))}


# -- samples --------------------------------------------------------------------------------


def test_a_sample_is_at_most_so_long_and_has_its_caption(folder):
    actual = everything(folder)
    assert len(actual) == 20
    for name, sample in actual.items():
        number = int(Path(name).stem)
        assert sample["text"] == f"sound number {number}"
        assert sample["wav"].dtype == torch.int16
        assert len(sample["wav"]) == sample["length"] == min(8_000, round(1600 + 800 * number))


def test_the_length_is_known_without_decoding(folder, monkeypatch):
    train, valid = both(folder)
    lengths = [[d.keyed(i, None)["length"] for i in range(len(d))] for d in (train, valid)]
    monkeypatch.setattr(AudioCache, "read", lambda *_, **__: pytest.fail("decoded"))
    assert [[d.length(i) for i in range(len(d))] for d in (train, valid)] == lengths


def test_files_of_all_rates_and_channels_come_out_alike(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for rate, channels in ((8_000, 1), (44_100, 2), (48_000, 1), (22_050, 6)):
        sound = np.stack([tone(2, rate)] * channels, axis=1)
        soundfile.write(tmp_path / f"{rate}.flac", sound, rate)
        (tmp_path / f"{rate}.txt").write_text("a tone")
    actual = everything(tmp_path)
    batch = collate(list(actual.values()), SMALL)
    assert batch["wavs"].shape == (4, 8_000)
    peaks = torch.fft.rfft(batch["wavs"]).abs().argmax(1)
    assert peaks.tolist() == [300] * 4


def test_a_sample_is_a_function_of_its_key(folder):
    data, _ = both(folder)
    longest = max(range(len(data)), key=lambda i: int(Path(data.name(i)).stem))
    one, again = (data.keyed(longest, Key(0, 0, 1))["wav"] for _ in range(2))
    assert torch.equal(one, again)
    assert not all(torch.equal(one, data.keyed(longest, Key(0, 0, k))["wav"]) for k in range(9))


def test_of_several_captions_the_key_takes_one_and_measuring_the_first(tmp_path):
    write_wav(tmp_path / "a.wav", tone(1), 8_000)
    for key in ("captions", "text"):
        describe(tmp_path, a_wav={key: ["one", " two ", "", "three"]})
        data = MusicFolder(tmp_path, SMALL, "train", 0)
        assert data.keyed(0, None)["text"] == "one"
        drawn = {data.keyed(0, Key(0, 0, k))["text"] for k in range(40)}
        assert drawn == {"one", "two", "three"}


def test_metadata_goes_before_text_files(folder):
    (folder / "metadata.csv").write_text("file_name,caption\npart0/00.wav,by the table\n")
    actual = everything(folder)
    assert actual["part0/00.wav"]["text"] == "by the table"
    assert actual["part0/02.wav"]["text"] == "sound number 2"


def test_train_and_valid_share_no_sound(folder):
    train, valid = both(folder)
    names = [{d.name(i) for i in range(len(d))} for d in (train, valid)]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 20
    assert names[1]


# -- captions that are missing or wrong -----------------------------------------------------


def test_sounds_without_a_caption_are_skipped_and_named(folder):
    (folder / "part0" / "02.txt").unlink()
    (folder / "part1" / "03.txt").unlink()
    with pytest.warns(UserWarning, match=r"2 of 20 sounds have no caption, part0/02\.wav is the"):
        train = MusicFolder(folder, SMALL, "train", 0)
    with pytest.warns(UserWarning, match="; skipped; "):
        valid = MusicFolder(folder, SMALL, "valid", 0)
    assert len(train) + len(valid) == 18


def test_a_folder_in_which_most_have_no_caption_is_refused(folder):
    for path in sorted(folder.rglob("*.txt"))[:11]:
        path.unlink()
    with pytest.raises(BadFile, match=r"11 of 20 sounds have no caption.*metadata\.jsonl"):
        both(folder)
    with pytest.warns(UserWarning, match="11 of 20"):
        MusicFolder(folder, MusicDataConfig(max_missing=0.6), "train", 0)


def test_a_folder_without_any_caption_is_refused(tmp_path):
    write_wav(tmp_path / "a.wav", tone(1), 8_000)
    with pytest.raises(BadFile, match="1 of 1 sounds have no caption"):
        MusicFolder(tmp_path, MusicDataConfig(max_missing=1.0), "train", 0)


def test_metadata_that_names_none_of_the_sounds_is_refused(tmp_path):
    write_wav(tmp_path / "a.wav", tone(1), 8_000)
    describe(tmp_path, b_wav={"text": "another"})
    with pytest.raises(BadFile, match="none of its 1 sounds"):
        MusicFolder(tmp_path, SMALL, "train", 0)


@pytest.mark.parametrize("said", [{}, {"text": ""}, {"text": "  "}, {"text": None}, {"text": []}])
def test_an_empty_caption_is_none(said, tmp_path):
    for name in "ab":
        write_wav(tmp_path / f"{name}.wav", tone(1), 8_000)
    describe(tmp_path, a_wav=said, b_wav={"text": "a tone"})
    with pytest.warns(UserWarning, match=r"1 of 2 sounds have no caption, a\.wav"):
        data = MusicFolder(tmp_path, SMALL, "train", 0)
    assert [data.name(i) for i in range(len(data))] == ["b.wav"]


@pytest.mark.parametrize(
    ("content", "word"), [(b"caf\xe9 music", "not UTF-8"), (b" \n ", "empty"), (b"", "empty")]
)
def test_a_text_file_that_says_nothing_is_named_when_it_is_read(content, word, folder):
    (folder / "part0" / "00.txt").write_bytes(content)
    train, valid = both(folder)
    data = train if any(train.name(i) == "part0/00.wav" for i in range(len(train))) else valid
    index = next(i for i in range(len(data)) if data.name(i) == "part0/00.wav")
    with pytest.raises(BadFile, match=rf"00\.txt: is {word}"):
        data.keyed(index, None)


def test_a_caption_of_ten_thousand_characters_is_cut_with_one_notice(folder):
    for name in ("00", "02"):
        (folder / "part0" / f"{name}.txt").write_text("x" * 10_000)
    data = MusicFolder(folder, MusicDataConfig(text_length=50, valid_fraction=0), "train", 0)
    indices = range(len(data))
    with pytest.warns(
        UserWarning, match=r"10,000 characters is truncated to text_length = 50"
    ) as notes:
        lengths = {data.name(i): len(data.text(i)) for i in indices}
    assert len(notes) == 1
    assert lengths["part0/02.wav"] == 50


def test_text_files_outside_the_folder_are_not_read(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.txt").write_text("a secret")
    for name in "ab":
        write_wav(inside / f"{name}.wav", tone(1), 8_000)
    (inside / "a.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "b.txt").write_text("a tone")
    with pytest.warns(UserWarning, match=r"a\.wav is the first"):
        data = MusicFolder(inside, SMALL, "train", 0)
    assert [data.text(i) for i in range(len(data))] == ["a tone"]


# -- damage ---------------------------------------------------------------------------------


def test_damaged_sounds_are_named_and_replaced(folder):
    (folder / "part0" / "00.wav").write_bytes(b"RIFF....WAVE")
    (folder / "part0" / "02.wav").write_bytes(b"nothing")
    write_wav(folder / "part0" / "04.wav", np.zeros(8_000), 8_000)
    data = MusicFolder(folder, MusicDataConfig(sample_rate=8_000, valid_fraction=0), "train", 0)
    samples, damaged = Samples(data, 0), []
    for index in range(len(data)):
        item, _, _, notes = samples[Request(0, index)]
        assert item is not None
        damaged += [note.name for note in notes]
    assert set(damaged) == {"part0/00.wav", "part0/02.wav", "part0/04.wav"}
    assert data.length(0) == 80_000  # not known: the longest


def test_check_names_what_is_wrong_with_each_file(folder):
    (folder / "part0" / "00.wav").write_bytes(b"nothing")
    (folder / "part0" / "02.txt").unlink()
    write_wav(folder / "part0" / "04.wav", np.zeros(8_000), 8_000)
    (folder / "part1" / "01.txt").write_bytes(b"\xff")
    actual = {path.name: problem for path, problem in check(folder) if problem}
    assert set(actual) == {"00.wav", "02.wav", "04.wav", "01.wav"}
    assert "none of WAV" in actual["00.wav"]
    assert "no caption" in actual["02.wav"]
    assert "silent" in actual["04.wav"]
    assert "UTF-8" in actual["01.wav"]


def test_a_folder_without_sounds_is_refused(tmp_path):
    with pytest.raises(BadFile, match=r"holds no sounds \(\.wav"):
        open_data(tmp_path, SMALL, "train", 0)


# -- built-in music -------------------------------------------------------------------------


def test_built_in_pieces_say_what_they_are():
    data = open_data(None, SMALL, "valid", 0)
    sample = data.keyed(3, None)
    assert sample["text"] == tunes.compose(7).captions[0]
    assert sample["labels"].tolist() == list(tunes.compose(7).labels)
    assert sample["length"] == len(sample["wav"]) == 8_000 == data.length(3)
    assert len(data) == 40


def test_training_pieces_have_lengths_that_vary_and_do_not_change():
    data = BuiltinTunes(SMALL, "train")
    lengths = [data.length(i) for i in range(60)]
    assert 3_200 <= min(lengths) < 4_200 < 7_000 < max(lengths) <= 8_000
    assert [data.keyed(i, Key(0, i, i))["length"] for i in range(60)] == lengths


def test_the_key_chooses_the_words_and_leaves_the_sound():
    data = BuiltinTunes(SMALL, "train")
    drawn = [data.keyed(0, Key(0, 0, k)) for k in range(60)]
    assert len({sample["text"] for sample in drawn}) > 6
    assert all(torch.equal(sample["wav"], drawn[0]["wav"]) for sample in drawn)


def test_captions_are_whole_where_none_may_be_partial():
    data = BuiltinTunes(MusicDataConfig(partial_captions=0.0, builtin_count=10), "train")
    tune = data.tune(4)
    assert all(data._random_caption(tune, Random(k)) in tune.captions for k in range(50))
    some = BuiltinTunes(MusicDataConfig(partial_captions=1.0, builtin_count=10), "train")
    assert not any(some._random_caption(tune, Random(k)) in tune.captions for k in range(50))


# -- batches --------------------------------------------------------------------------------


def test_a_batch_is_padded_with_nothing_up_to_a_bucket():
    items = [{"wav": torch.ones(n), "text": str(n)} for n in (5, 3_100, 2_000)]
    batch = collate(items, SMALL)
    assert batch["wavs"].shape == (3, 4_000)
    assert batch["lengths"].tolist() == [5, 3_100, 2_000]
    assert batch["wavs"].sum(1).tolist() == [5, 3_100, 2_000]
    assert batch["texts"] == ["5", "3100", "2000"]
    assert "labels" not in batch
    assert "tokens" not in batch
    assert collate(items)["wavs"].shape == (3, 3_100)


def test_labels_and_tokens_travel_along():
    data = BuiltinTunes(SMALL, "train")
    items = [data.keyed(i, None) | {"tokens": torch.arange(1, i + 2)} for i in range(3)]
    batch = collate(items, SMALL)
    assert batch["labels"].tolist() == [list(data.tune(i).labels) for i in range(3)]
    assert batch["tokens"].tolist() == [[1, 0, 0], [1, 2, 0], [1, 2, 3]]


@settings(deadline=None)
@given(st.integers(1, 30_000), st.integers(1, 12), st.floats(0.2, 3))
def test_buckets_are_few_and_hold_what_they_must(length, buckets, seconds):
    config = MusicDataConfig(sample_rate=8_000, seconds=seconds, min_seconds=0.1, buckets=buckets)
    longest = round(seconds * 8_000)
    assert padded_length(length, config) >= length
    sizes = {padded_length(n, config) for n in range(longest, 0, -37)}
    assert len(sizes) <= buckets
    assert max(sizes) == longest


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=8, max_size=90),
    st.sampled_from([(1, 4), (2, 2), (4, 1), (1, 8), (4, 2)]),
    st.integers(0, 3),
)
def test_batches_by_length_take_every_sound_once_an_epoch(buckets, cut, seed):
    count, width = cut
    plan = LengthPlan(buckets, seed, batch_size=width, window=3)
    size = count * width
    window = min(3, len(buckets) // size) * size
    taken = [
        request
        for position in range(0, window * len(buckets), size)
        for batch in plan.micro_batches(position, count)
        for request in batch
    ]
    plain = CountPlan(len(buckets), seed, width).micro_batches(0, len(taken) // width)
    assert sorted(taken) == sorted(request for batch in plain for request in batch)
    other = LengthPlan(
        buckets, seed, batch_size=size, window=3
    )  # the same global batch in one piece
    position = window - size
    again = [r for batch in plan.micro_batches(position, count) for r in batch]
    assert other.micro_batches(position, 1)[0] == again


def test_batches_by_length_waste_a_third_of_what_others_do():
    config = MusicDataConfig(builtin_count=20_000)
    data = BuiltinTunes(config, "train")

    def share(plan: Any) -> tuple[float, int]:
        real, padded, shapes = 0, 0, set()
        for step in range(40):
            for batch in plan.micro_batches(step * 64, 1):
                lengths = [data.length(request.sample) for request in batch]
                shape = len(batch), padded_length(max(lengths), config)
                shapes.add(shape)
                real, padded = real + sum(lengths), padded + shape[0] * shape[1]
        return 1 - real / padded, len(shapes)

    wasted, shapes = share(length_plan(data, config, 0, 64))
    assert wasted < 0.12 < 0.25 < share(CountPlan(len(data), 0, 64))[0]
    assert shapes <= 5


def test_a_custom_data_set_is_cut_by_count():
    plan = length_plan(OwnSounds([None] * 40, 8000), SMALL, 0, 8)
    seen = [request.sample for k in range(5) for request in plan.micro_batches(8 * k, 1)[0]]
    assert sorted(seen) == list(range(40))


def test_data_smaller_than_a_batch_is_refused():
    with pytest.raises(RunError, match="the data has 5 samples, but one global batch takes 8"):
        LengthPlan([1] * 5, 0, batch_size=4).micro_batches(0, 2)


# -- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample_rate", 10),
        ("seconds", 0.0),
        ("min_seconds", 20.0),
        ("valid_fraction", 1.0),
        ("partial_captions", 1.5),
        ("max_missing", -0.1),
        ("buckets", 0),
        ("text_length", 0),
        ("max_seconds", float("nan")),
        ("max_channels", 0),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(field, value):
    with pytest.raises(ConfigError, match=field):
        MusicDataConfig(**{field: value})


# -- texts ----------------------------------------------------------------------------------


def test_no_built_in_caption_exceeds_the_bound():
    data = BuiltinTunes(replace(SMALL, partial_captions=0.5), "train")
    drawn = [data.keyed(i % 40, Key(0, i, i))["text"] for i in range(300)]
    whole = [text for k in range(3000) for text in tunes.compose(k).captions]
    longest = max(len(text.encode()) for text in drawn + whole)
    assert 0.9 * data.longest_text() < longest <= data.longest_text()


def test_texts_are_padded_to_the_longest_of_a_folder_that_lists_its_captions(folder):
    rows = [
        {"file_name": str(path.relative_to(folder)), "texts": ["ä" * 10, "b" * (3 + n)]}
        for n, path in enumerate(sorted(folder.rglob("*.wav")))
    ]
    lines = "\n".join(map(json.dumps, rows))
    beside, most = [*both(folder)], 256
    assert text_length(beside, most) == most, "texts beside the sounds are not read"
    (folder / "metadata.jsonl").write_text(lines)
    listed = [*both(folder)]
    assert max(data.longest_text() or 0 for data in listed) == 22
    assert text_length(listed, most) == 24
    assert text_length(listed, 16) == 16
    assert text_length([*listed, object()], most) == most, "a data set of one's own"

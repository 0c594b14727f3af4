"""Published corpora as they are unpacked, and long recordings with a table of segments."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.cli import main
from quintet.media.audio import trimmed, write_wav
from quintet.media.errors import BadFile
from quintet.shared.transcripts import Transcripts
from quintet.speech import voices
from quintet.speech.data import SpeechFolder
from speech.small import small_buckets, utter

RATE = 8_000
TEXTS = [f"{a}{b}" for a in ("ba", "do", "ki", "tu", "ma") for b in ("ba", "do", "ki")]


def record(folder: Path, name: str, text: str = "bakitu") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Distinct, or the doctor would find duplicates.
    seed = int.from_bytes(name.encode(), "big") % 2**31
    write_wav(path, voices.speak(utter(text, seed=seed), RATE), RATE)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def ljspeech(folder: Path) -> None:
    lines = [f"LJ001-{i:04d}|{text}, raw|{text}" for i, text in enumerate(TEXTS)]
    write(folder / "metadata.csv", "\n".join(lines))
    for i in range(len(TEXTS)):
        record(folder, f"wavs/LJ001-{i:04d}.wav")


def libritts(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        speaker, chapter = 100 + i % 3, 7000 + i % 2
        stem = f"train-clean-100/{speaker}/{chapter}/{speaker}_{chapter}_{i:06d}_000000"
        record(folder, f"{stem}.wav")
        write(folder / f"{stem}.original.txt", f"{text}, RAW")
        write(folder / f"{stem}.normalized.txt", f"{text}\n")


def vctk(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        speaker = f"p{225 + i % 3}"
        for mic in ("mic1", "mic2"):
            record(folder, f"wav48_silence_trimmed/{speaker}/{speaker}_{i:03d}_{mic}.wav")
        write(folder / f"txt/{speaker}/{speaker}_{i:03d}.txt", f"{text}\n")


def older_vctk(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        speaker = f"p{225 + i % 3}"
        record(folder, f"wav48/{speaker}/{speaker}_{i:03d}.wav")
        write(folder / f"txt/{speaker}/{speaker}_{i:03d}.txt", f"{text}\n")


def common_voice(folder: Path, locale: str = "en") -> None:
    header = "client_id\tpath\tsentence\tup_votes\tlocale"
    rows = [
        f"voice{i % 3}\tclip_{locale}_{i}.wav\t{text}\t2\t{locale}" for i, text in enumerate(TEXTS)
    ]
    write(folder / "validated.tsv", "\n".join([header, *rows]))
    write(folder / "invalidated.tsv", f"{header}\nx\tclip_{locale}_bad.wav\twrong\t0\t{locale}")
    for i in range(len(TEXTS)):
        record(folder, f"clips/clip_{locale}_{i}.wav")
    record(folder, f"clips/clip_{locale}_bad.wav")


def languages(folder: Path) -> None:
    for locale in ("de", "en"):
        common_voice(folder / locale, locale)


LAYOUTS = {
    "LJSpeech": (ljspeech, 0, 1),
    "LibriTTS": (libritts, 3, 1),
    "VCTK": (vctk, 3, 1),
    "VCTK 0.80": (older_vctk, 3, 1),
    "Common Voice": (common_voice, 3, 1),
    "Common Voice of two languages": (languages, 3, 2),
}


def both_splits(folder: Path, **changes: Any) -> list[tuple[SpeechFolder, int]]:
    sides = [SpeechFolder(folder, small_buckets(**changes), s, 0) for s in ("train", "valid")]
    return [(side, index) for side in sides for index in range(len(side))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_corpus_is_read_as_it_is_unpacked(tmp_path, layout):
    make, speakers, copies = LAYOUTS[layout]
    make(tmp_path)
    samples = both_splits(tmp_path, valid_limit=100)
    assert sorted(side.keyed(i, None)["text"] for side, i in samples) == sorted(TEXTS * copies)
    named = {side.about(i).speaker for side, i in samples} - {""}
    assert len(named) == speakers
    known = {side.about(i).language for side, i in samples}
    assert known == {"LJSpeech": {""}, "Common Voice of two languages": {"de", "en"}}.get(
        layout, {"en"}
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_doctor_recognises_a_corpus(tmp_path, layout, capfd):
    make, speakers, _ = LAYOUTS[layout]
    make(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(tmp_path)])
    out = capfd.readouterr().out
    assert not ended.value.code
    name = layout.removesuffix(" 0.80").removesuffix(" of two languages")
    assert f"layout: {name}; {speakers or 1} speakers" in out
    assert "hours" in out
    assert "captions: all" in out


def test_any_other_folder_is_no_corpus(tmp_path, capfd):
    record(tmp_path, "a.wav")
    write(tmp_path / "a.txt", "bakitu")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(tmp_path)])
    assert ended.value.code == 2
    assert "name the room" in capfd.readouterr().err


def test_a_packed_corpus_keeps_speakers_and_languages(tmp_path):
    vctk(tmp_path / "vctk")
    with pytest.raises(SystemExit) as ended:
        main(["pack", str(tmp_path / "vctk"), str(tmp_path / "shards"), "--room", "speech"])
    assert not ended.value.code
    samples = both_splits(tmp_path / "shards", valid_limit=100)
    assert {side.about(i).speaker for side, i in samples} == {"p225", "p226", "p227"}


# -- silence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.int16])
def test_silence_at_both_ends_is_cut_to_a_tenth_of_a_second(kind):
    sound = voices.speak(utter("bakitu"), RATE)
    noise = 1e-4 * np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    whole = np.concatenate((noise, sound, noise[: RATE // 2]))
    whole = (whole * 32768).astype(kind) if kind is np.int16 else whole
    cut = trimmed(whole, RATE, 40.0)
    assert cut.dtype == kind
    assert len(sound) * 0.8 <= len(cut) <= len(sound) + 0.22 * RATE
    start = next(i for i in range(len(whole)) if np.array_equal(whole[i : i + len(cut)], cut))
    assert 0.85 * RATE <= start <= 1.1 * RATE


def test_speech_without_silence_stays_whole():
    sound = np.sin(np.arange(RATE) * 0.3).astype(np.float32)
    assert np.array_equal(trimmed(sound, RATE, 40.0), sound)


def test_a_folder_is_trimmed_unless_told_otherwise(tmp_path):
    sound = voices.speak(utter("bakitu"), RATE)
    silence = np.zeros(RATE // 2, np.float32)
    for name in "ab":
        write_wav(tmp_path / f"{name}.wav", np.concatenate((silence, sound, silence)), RATE)
        write(tmp_path / f"{name}.txt", "bakitu")
    lengths = [
        len(SpeechFolder(tmp_path, small_buckets(trim=trim), "train", 0).keyed(0, None)["audio"])
        for trim in (40.0, 0.0)
    ]
    assert lengths[1] == len(sound) + RATE
    assert lengths[0] < len(sound) + 0.25 * RATE


# -- segments -----------------------------------------------------------------------------------


def long_recording(folder: Path, table: str) -> list[np.ndarray]:
    sounds = [voices.speak(utter(text, seed=i), RATE) for i, text in enumerate(TEXTS)]
    ends = np.cumsum([len(sound) for sound in sounds]) / RATE
    starts = [0.0, *ends[:-1]]
    write_wav(folder / "long.wav", np.concatenate(sounds), RATE)
    rows = list(zip(starts, ends, TEXTS))
    if table == "jsonl":
        keys = ("start", "end", "text")
        lines = [json.dumps(dict(zip(keys, row)) | {"speaker": "ann"}) for row in rows]
    else:
        header = {"header": ["start\tend\ttext\tspeaker"], "labels": []}[table]
        lines = header + [f"{a:.6f}\t{b:.6f}\t{text}\tann" for a, b, text in rows]
    suffix = "jsonl" if table == "jsonl" else "tsv"
    write(folder / f"long.{suffix}", "\n".join(lines))
    return sounds


@pytest.mark.parametrize("table", ["jsonl", "header", "labels"])
def test_a_long_recording_is_cut_into_its_segments(tmp_path, table):
    sounds = long_recording(tmp_path, table)
    samples = both_splits(tmp_path, valid_limit=100, trim=0.0)
    assert len(samples) == len(TEXTS)
    for side, index in samples:
        item, name = side.keyed(index, None), side.name(index)
        assert name.startswith("long.wav#")
        assert side.path(index) == tmp_path / "long.wav"
        assert side.about(index).speaker == ("" if table == "labels" else "ann")
        sound = sounds[TEXTS.index(item["text"])]
        audio = np.asarray(item["audio"], np.float32) / 32768
        assert abs(len(audio) - len(sound)) <= 1
        short = min(len(audio), len(sound))
        # A sample more or less at the start: the times have six digits.
        errors = [
            np.abs(np.roll(audio[:short], shift) - sound[:short])[2:-2].max()
            for shift in (-1, 0, 1)
        ]
        assert min(errors) < 1e-3
    side = samples[0][0]
    assert set(side.files()) == {side.name(i) for i in range(len(side))}
    assert len(set(side.files().values())) == 1


def test_other_recordings_beside_a_long_one_keep_their_limit(tmp_path, capfd):
    long_recording(tmp_path, "jsonl")
    record(tmp_path, "short.wav")
    write(tmp_path / "short.txt", "bakitu")
    write_wav(tmp_path / "endless.wav", np.resize(voices.speak(utter("ba"), RATE), 3 * RATE), RATE)
    write(tmp_path / "endless.txt", "ba")
    names = {side.name(i) for side, i in both_splits(tmp_path, valid_limit=100)}
    assert "short.wav" in names
    assert "endless.wav" not in names
    assert "more than max_seconds = 2" in capfd.readouterr().err


def test_times_in_milliseconds_are_named(tmp_path):
    record(tmp_path, "a.wav")
    write(tmp_path / "a.tsv", "start\tend\ttext\n0\t900\tbakitu\n")
    texts = Transcripts(tmp_path, ["a.wav"])
    assert [cut.end for cut in texts.cuts.values()] == [900.0]
    with pytest.raises(BadFile, match="not milliseconds"):
        SpeechFolder(tmp_path, small_buckets(max_seconds=1000.0), "train", 0).keyed(0, None)


@pytest.mark.parametrize("row", ["a\tb\tbakitu", "2\t1\tbakitu", "0\tinf\tbakitu"])
def test_a_segment_that_cannot_be_is_refused_with_its_row(tmp_path, row):
    record(tmp_path, "a.wav")
    write(tmp_path / "a.tsv", f"start\tend\ttext\n{row}\n")
    with pytest.raises(BadFile, match=r"a\.tsv.*row 1"):
        Transcripts(tmp_path, ["a.wav"])


def test_the_doctor_counts_segments_and_pack_refuses_them(tmp_path, capfd):
    (tmp_path / "long").mkdir()
    long_recording(tmp_path / "long", "header")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "speech", str(tmp_path / "long")])
    assert not ended.value.code
    assert f"segments: {len(TEXTS)} in 1 recordings" in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["pack", str(tmp_path / "long"), str(tmp_path / "out"), "--room", "speech"])
    assert ended.value.code == 2
    assert "pack the segments as files" in capfd.readouterr().err

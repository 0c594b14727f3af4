"""The prompt of a held-out text is another recording of the same speaker."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quintet.media.audio import write_wav
from quintet.media.shards.pack import pack
from quintet.speech.data import SpeechFolder, described
from quintet.speech.voicebox.outputs import Spoken
from speech.small import small_buckets

RATE = 8_000
VOICES = {"a": "ann", "b": "bob", "c": "ann", "d": "bob"}
"""Speakers take turns; each says the name of the file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wav = np.random.default_rng(0).normal(size=RATE // 2).astype(np.float32) * 0.1
    for name in VOICES:
        write_wav(tmp_path / f"{name}.wav", wav, RATE)
    return tmp_path


def prompts(folder: Path, **settings: Any) -> dict[str, str]:
    """What is said before each text."""
    source = SpeechFolder(folder, small_buckets(valid_fraction=0.0, **settings), "train", 0)
    task: Any = SimpleNamespace(config=SimpleNamespace(features="mel", text="learned"))
    spoken = Spoken(task)
    spoken.open({}, source)
    found = {source.text(index): spoken.prompt(index) for index in range(len(source))}
    return {text: prompt["text"] if prompt else "" for text, prompt in found.items()}


def table(*, separator: str, column: str) -> str:
    rows = [f"{name}.wav{separator}{name}{separator}{who}" for name, who in VOICES.items()]
    return "\n".join([separator.join(["file_name", "text", column]), *rows])


def lines(column: str) -> str:
    rows = [{"file_name": f"{x}.wav", "text": x, column: who} for x, who in VOICES.items()]
    return "\n".join(map(json.dumps, rows))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metadata.jsonl", lines("speaker")),
        ("metadata.jsonl", lines("speaker_id")),
        ("metadata.csv", table(separator=",", column="speaker")),
        ("metadata.csv", table(separator="|", column="speaker")),
    ],
)
def test_metadata_names_the_speaker(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content, encoding="utf-8")
    assert prompts(folder) == {"a": "c", "c": "a", "b": "d", "d": "b"}


def test_without_a_speaker_a_folder_is_one(folder: Path) -> None:
    names = list(VOICES)
    (folder / "metadata.csv").write_text("\n".join(f"{x}|{x}" for x in names), encoding="utf-8")
    assert prompts(folder) == dict(zip(names, [*names[1:], names[0]]))


def test_recordings_of_no_named_speaker_keep_to_their_folder(folder: Path) -> None:
    rows = [json.loads(line) for line in lines("speaker").splitlines()]
    for row, who in zip(rows, (0, None, 0, "")):  # a number is a name, and 0 is one
        row["speaker"] = who
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert prompts(folder) == {"a": "c", "c": "a", "b": "d", "d": "b"}
    (folder / "b").mkdir()
    (folder / "b.wav").rename(folder / "b" / "b.wav")
    rows[1]["file_name"] = "b/b.wav"
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert prompts(folder) == {"a": "c", "c": "a", "b": "", "d": ""}


def test_shards_keep_the_speaker(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "metadata.jsonl").write_text(lines("speaker"), encoding="utf-8")
    names = [f"{name}.wav" for name in VOICES]
    out = tmp_path_factory.mktemp("packed") / "shards"
    pack(folder, [folder / name for name in names], out, described(folder, names), 10**6)
    assert prompts(out) == {"a": "c", "c": "a", "b": "d", "d": "b"}


def test_a_prompt_lasts_three_to_six_seconds_where_one_does(tmp_path: Path) -> None:
    long = {"a": 1, "b": 7, "c": 4, "d": 2, "e": 5}
    for name, seconds in long.items():
        write_wav(tmp_path / f"{name}.wav", np.full(RATE * seconds, 0.1, np.float32), RATE)
        (tmp_path / f"{name}.txt").write_text(name, encoding="utf-8")
    found = prompts(tmp_path, max_seconds=8.0)
    assert found == {"a": "c", "b": "c", "c": "e", "d": "e", "e": "c"}

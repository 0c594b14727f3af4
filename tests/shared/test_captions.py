"""Texts beside files: what a run records of them, in every room that reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quintet.engine.data.record import record_of
from quintet.image.clip.config import CaptionedDataConfig
from quintet.image.clip.data import CaptionedFolder
from quintet.media.audio import write_wav
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import MeshFolder
from quintet.mesh.transformer.data import CodeData
from quintet.music.config import MusicDataConfig
from quintet.music.data import MusicFolder
from quintet.shared.captions import folder_caption
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets, SpeechFolder
from quintet.speech.voicebox.config import VoiceBoxConfig

KEPT: dict[str, Any] = {"valid_fraction": 0.0}


def picture(path: Path, number: int) -> None:
    values = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
    Image.fromarray(values).save(path)


def sound(path: Path, number: int) -> None:
    write_wav(path, np.sin(np.arange(16_000) * 0.1 * (number + 1)) * 0.5, 16_000)


def mesh(path: Path, number: int) -> None:
    path.write_text(f"v 0 0 0\nv 1 0 0\nv 0 {number + 1} 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\n")


def speech(folder: Path, **model: Any) -> SpeechFolder:
    buckets = Buckets(SpeechDataConfig(**KEPT), VoiceBoxConfig(**model))
    return SpeechFolder(folder, buckets, "train", 0)


def clip(folder: Path) -> CaptionedFolder:
    return CaptionedFolder(folder, CaptionedDataConfig(**KEPT), "train", 0)


def music(folder: Path) -> MusicFolder:
    return MusicFolder(folder, MusicDataConfig(**KEPT), "train", 0)


def codes(folder: Path) -> CodeData:
    return CodeData(MeshFolder(folder, MeshDataConfig(**KEPT), "train", 0), 1, "weights")


def filled(folder: Path, suffix: str, write: Callable[[Path, int], None]) -> Path:
    for number in range(3):
        write(folder / f"{number}{suffix}", number)
    return folder


def describe(folder: Path, suffix: str, texts: list[str]) -> None:
    rows = [{"file_name": f"{n}{suffix}", "text": text} for n, text in enumerate(texts)]
    rows.reverse()
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))


READERS = [
    (".png", picture, clip),
    (".wav", sound, music),
    (".wav", sound, speech),
    (".obj", mesh, codes),
]


@pytest.mark.parametrize(("suffix", "write", "reader"), READERS)
def test_a_text_in_the_metadata_is_recorded_with_its_file(
    suffix: str, write: Any, reader: Any, tmp_path: Path
) -> None:
    filled(tmp_path, suffix, write)
    describe(tmp_path, suffix, ["one", "two", "three"])
    before = record_of(reader(tmp_path)).texts
    describe(tmp_path, suffix, ["one", "another", "three"])
    now = record_of(reader(tmp_path)).texts
    assert [name for name in before if before[name] != now[name]] == [f"1{suffix}"]
    describe(tmp_path, suffix, ["one", "two", "three"])
    assert record_of(reader(tmp_path)).texts == before


@pytest.mark.parametrize(("suffix", "write", "reader"), READERS[:3])
def test_a_text_file_is_recorded_with_the_file_beside_it(
    suffix: str, write: Any, reader: Any, tmp_path: Path
) -> None:
    filled(tmp_path, suffix, write)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("some words")
    before = record_of(reader(tmp_path)).texts
    (tmp_path / "2.txt").write_text("other words")
    now = record_of(reader(tmp_path)).texts
    assert [name for name in before if before[name] != now[name]] == [f"2{suffix}"]


def test_texts_that_the_model_does_not_read_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    (tmp_path / "meshes").mkdir()
    assert record_of(speech(filled(tmp_path / "sounds", ".wav", sound), text="none")).texts == {}
    source = codes(filled(tmp_path / "meshes", ".obj", mesh))
    source.reads_texts = False
    assert record_of(source).texts == {}


def test_the_folder_of_a_split_is_no_caption() -> None:
    names = ("train/a.png", "Test/a.png", "train/red_fox/a.png", "all/train/a.png", "a.png")
    assert [*map(folder_caption, names)] == ["", "", "red fox", "train", ""]

"""Lists of training and validation files: a user's own, and the record of a run."""

import json
from pathlib import Path

import pytest

from quintet.image.config import ImageDataConfig
from quintet.image.data import ImageFolder
from quintet.media.errors import BadFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcdefgh":
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{name}.png").write_bytes(b"x" * ord(name))
    return tmp_path / "photos"


def written(folder: Path, content: object) -> str:
    path = folder.parent / "lists.json"
    path.write_text(json.dumps(content))
    return str(path)


def names(folder: Path, split: str, **settings: object) -> list[str]:
    data = ImageFolder(folder, ImageDataConfig(**settings), split, 0)  # type: ignore[arg-type]
    return [data.name(index).removesuffix(".png") for index in range(len(data))]


def test_a_users_lists_are_the_split(folder: Path) -> None:
    path = written(folder, {"train": ["c.png", "a.png"], "valid": ["b.png", "gone.png"]})
    assert names(folder, "train", split_file=path) == ["a", "c"]
    assert names(folder, "valid", split_file=path) == ["b"]


@pytest.mark.parametrize("content", [[], {"train": "a.png", "valid": []}, {"train": ["a.png"]}])
def test_a_list_of_another_form_is_refused_with_the_form(folder: Path, content: object) -> None:
    with pytest.raises(BadFile, match=r'write \{"train": \["a.png"\], "valid": \["b.png"\]\}'):
        names(folder, "train", split_file=written(folder, content))


def test_a_list_of_another_folder_is_refused(folder: Path) -> None:
    path = written(folder, {"train": ["x.png"], "valid": ["y.png"]})
    with pytest.raises(BadFile, match=r"lists 2 files, x.png the first; none of them"):
        names(folder, "train", split_file=path)


RECORD = {
    "train": {"a.png": "1", "b.png": "1"},
    "valid": {"c.png": "1"},
    "unused": {"train": ["d.png"], "valid": []},
}


def test_a_record_leaves_out_what_is_new(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(folder, RECORD)
    assert names(folder, "train", split_file=path) == ["a", "b"]
    assert names(folder, "valid", split_file=path) == ["c"]
    said = capfd.readouterr().err
    assert said.count("4 files are new since the run began and left out, such as e.png") == 1


def test_a_record_takes_in_what_is_new_when_asked(folder: Path) -> None:
    path = written(folder, {**RECORD, "takes_new": True})
    assert names(folder, "train", split_file=path) == ["a", "b", "e", "f", "g", "h"]
    assert names(folder, "valid", split_file=path) == ["c"]


def test_a_folder_of_validation_data_has_its_own_new_files(folder: Path) -> None:
    path = written(folder, {**RECORD, "takes_new": True})
    own = {"split_file": path, "valid_folder": str(folder)}
    assert names(folder, "valid", **own) == ["a", "b", "c", "d", "e", "f", "g", "h"]


def test_files_are_known_by_content_in_a_small_folder(folder: Path) -> None:
    before = ImageFolder(folder, ImageDataConfig(), "train", 0).files()
    name = next(iter(before))
    (folder / name).write_bytes(b"y" * (folder / name).stat().st_size)
    after = ImageFolder(folder, ImageDataConfig(), "train", 0).files()
    assert {key for key in before if before[key] != after[key]} == {name}

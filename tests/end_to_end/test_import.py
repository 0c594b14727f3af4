"""`quintet import` as a person gives it."""

import json
import os
from pathlib import Path

import pytest
import torch
from command import Quintet
from safetensors.torch import load_file


@pytest.fixture(params=[True, False], ids=["archive", "before torch 1.6"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    content = {"model": {"w": torch.arange(6.0).view(2, 3)}, "step": 7}
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=request.param)
    return tmp_path / "old.pt"


def test_tensors_come_out_and_the_folder_says_what_they_are(
    old: Path, tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet("import", old, tmp_path / "out")
    assert said.status == 0, said.err
    assert "1 tensors" in said.out
    found = load_file(tmp_path / "out/tensors.safetensors")
    assert found["model/w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    listing = json.loads((tmp_path / "out/listing.json").read_text())
    assert listing["tensors"] == {"model/w": {"shape": [2, 3], "type": "float32"}}
    assert listing["values"] == {"step": 7}


class Trap:
    def __init__(self, where: Path):
        self.where = where

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.where),)


def test_a_trap_is_a_sentence_and_leaves_no_folder(tmp_path: Path, quintet: Quintet) -> None:
    torch.save({"w": torch.ones(1), "x": Trap(tmp_path / "canary")}, tmp_path / "old.pt")
    said = quintet("import", tmp_path / "old.pt", tmp_path / "out")
    assert said.status == 2
    assert "old.pt names posix.mkdir, which is no tensor" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.pt"]


def test_a_folder_that_is_not_empty_is_left_alone(
    old: Path, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    assert "is not empty" in quintet("import", old, tmp_path / "out").err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("flag", ["--max-gb", "--memory-gb", "--minutes"])
def test_a_limit_that_is_none_is_refused(
    flag: str, old: Path, tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet("import", old, tmp_path / "out", flag, "nan")
    assert said.status == 2
    assert flag in said.err
    assert not (tmp_path / "out").exists()

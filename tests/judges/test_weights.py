"""Files of weights for judges."""

from pathlib import Path

import pytest
import torch

from quintet.judges import weights


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "before torch 1.6"])
def test_a_pt_file_is_read_as_safetensors(
    archive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    content = {"lin0.weight": torch.arange(4.0)}
    torch.save(content, tmp_path / "heads.pth", _use_new_zipfile_serialization=archive)
    tensors, digest = weights.load("heads", "heads")
    assert tensors["lin0.weight"].equal(content["lin0.weight"])
    assert weights.load("heads", "heads")[1] == digest

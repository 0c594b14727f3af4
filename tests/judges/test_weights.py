"""Files of weights for judges."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from judges.conftest import all_judges
from quintet.engine.errors import RunError
from quintet.judges import weights
from quintet.judges.base import Judge
from quintet.judges.clip_score import ClipScore
from quintet.judges.media import image as images
from quintet.judges.media import music, speech
from quintet.judges.media import video as videos

Write = Callable[[Path, list[int | str]], None]


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(True, id="archive"),
        # Both are read by engine/models/sandbox.py, whose tests read each.
        pytest.param(False, id="before torch 1.6", marks=pytest.mark.slow),
    ],
)
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


def test_weights_of_an_installed_package_are_found_and_the_users_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "resemblyzer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('librosa')")
    (package / "pretrained.pt").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    assert weights.find("resemblyzer") == package / "pretrained.pt"
    (tmp_path / "resemblyzer.pth").touch()
    assert weights.find("resemblyzer") == tmp_path / "resemblyzer.pth"


FILES: dict[type[Judge], str] = {
    images.LpipsVgg: "lpips_vgg",
    images.LpipsAlex: "lpips_alex",
    images.Fid: "inception",
    images.Kid: "inception",
    images.FrechetVgg: "vgg16",
    videos.Fvd: "i3d",
    speech.Speaker: "resemblyzer",
    speech.OwnVoice: "resemblyzer",
    music.AudioDistance: "vggish",
    music.KernelDistance: "vggish",
}


@pytest.mark.parametrize("judge", FILES)
def test_the_file_of_another_network_is_refused(
    judge: type[Judge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    path = tmp_path / f"{FILES[judge]}.safetensors"
    save_file({"features.0.weight": torch.zeros(300_000)}, path)
    with pytest.raises(RunError, match=FILES[judge]):
        judge().facts()
    path.write_bytes(b"<html>not found</html>" * 60_000)
    with pytest.raises(RunError, match=f"{path} is not a safetensors file"):
        judge().facts()


def test_an_onnx_file_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_onnx: Write
) -> None:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    path = tmp_path / "features.onnx"
    assert f"as {path}" in str(images.FrechetOnnx().problem())
    write_onnx(path, ["b", 3, "t", "h", "w"])
    with pytest.raises(RunError, match=r"takes .*; it must take \(b, 3, h, w\)"):
        images.FrechetOnnx().facts()
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(RunError, match=f"{path} cannot be read"):
        images.FrechetOnnx().facts()


def test_an_onnx_file_of_a_fixed_size_gets_pictures_of_that_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_onnx: Write
) -> None:
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    write_onnx(tmp_path / "features.onnx", [1, 3, 8, 8])
    judge, picture = images.FrechetOnnx(), torch.rand(3, 8, 8)
    larger = picture.repeat_interleave(3, 1).repeat_interleave(3, 2)
    assert judge.features([picture, larger]).shape == (2, 16)
    assert judge.facts()["resize"] == "bilinear with antialiasing to 8 x 8"
    flat = torch.full((3, 24, 20), 0.4)
    assert judge.features([flat])[0] == pytest.approx(judge.features([flat[:, :8, :8]])[0])


def test_no_judge_with_weights_is_forgotten_above() -> None:
    asked = {judge for judge in all_judges() if "weights" in judge.needs}
    frames = {videos.LpipsVgg, videos.LpipsAlex, videos.FrameFid, videos.FrameKid}
    assert asked - frames - {videos.FrechetOnnx} == {*FILES, images.FrechetOnnx, ClipScore}

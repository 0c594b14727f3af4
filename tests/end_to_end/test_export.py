"""quintet export: what it writes works elsewhere, and does what the model does."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Quintet, with_nan
from torch import Tensor, nn

import quintet as library
from quintet import rooms
from quintet.engine.errors import RunError
from quintet.engine.models.export import Exportable, Input, Piece, export

SMALL = ["--workers", "0", "--precision", "fp32", "--device", "cpu", "--trackers", "--steps", "1"]
ROOMS = {
    "video/tokenizer_tiny": ["--batch-size", "2", "--videos.valid-limit", "2"],
    "mesh/autoencoder_tiny": ["--batch-size", "2", "--meshes.valid-limit", "2"],
    "mesh/retopology_tiny": ["--batch-size", "2", "--generation.count", "1"],
    "music/mulan_tiny": ["--batch-size", "2", "--sounds.valid-limit", "2"],
    "speech/voicebox_tiny": ["--batch-size", "2", "--sampling.count", "1"],
}
RunCode = Callable[[str, Path], dict[str, Any]]


def blocks(page: Path) -> list[str]:
    """The Python in a Markdown file."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def run_code(monkeypatch: pytest.MonkeyPatch) -> RunCode:
    """Runs code in a folder, and returns the names that it has made."""

    def run(code: str, folder: Path) -> dict[str, Any]:
        monkeypatch.chdir(folder)
        names: dict[str, Any] = {}
        exec(code, names)
        return names

    return run


# -- safetensors --------------------------------------------------------------------------------


def test_the_cards_code_loads_the_model(exported: Path, run_code: RunCode) -> None:
    (code,) = blocks(exported / "README.md")
    model = run_code(code, exported)["model"]
    assert isinstance(model, library.VQGanVAE)
    assert not model.training


def test_an_export_brings_samples_and_says_that_it_was_read_back(
    trained: Path, tmp_path: Path, quintet: Quintet
) -> None:
    (tmp_path / "model").mkdir()  # an empty folder will do
    said = quintet("export", trained, tmp_path / "model", "--format", "safetensors")
    assert said.status == 0
    assert "read back and equal bit for bit" in said.out
    assert (tmp_path / "model/samples/reconstructions.png").is_file()
    assert "](samples/reconstructions.png)" in (tmp_path / "model/README.md").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_an_export_of_continuous_latents_holds_their_scale(
    continuous: Path, tmp_path: Path, quintet: Quintet
) -> None:
    assert quintet("export", continuous, tmp_path / "model").status == 0
    model = library.VQGanVAE.from_pretrained(tmp_path / "model")
    log = [json.loads(line) for line in (continuous / "metrics.jsonl").read_text().splitlines()]
    stds = [line["val/latent_std"] for line in log if "val/latent_std" in line]
    assert model.config.latent_scale == pytest.approx(1 / stds[-1])
    own = library.load(continuous)
    assert own.config.latent_scale == 1.0
    images = torch.rand(2, 3, 32, 32)
    assert model.encode_latents(images).equal(own.encode_latents(images))
    assert model.reconstruct(images).equal(own.reconstruct(images))


# -- graphs -------------------------------------------------------------------------------------


class Wrong(nn.Module):
    """Says one thing when it is traced, and another when it is run."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            return x + self.by
        return x * 1.0


class Tied(nn.Module):
    """`len` gives a plain number, and ties the graph to it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1).expand(2, -1) * 2


def piece(network: nn.Module) -> Exportable:
    given = {"x": Input(torch.rand(2, 3), torch.rand(3, 3), "(batch, 3) float32")}
    return Exportable([Piece("it", "a toy", network, given, {"y": "(batch, 3) float32"})], "")


@pytest.mark.parametrize("form", ["safetensors", "torch-export"])
def test_weights_that_are_not_finite_are_not_exported(
    form: str, copied: Path, tmp_path: Path, quintet: Quintet
) -> None:
    said = quintet("export", with_nan(copied), tmp_path / "model", "--format", form)
    assert said.status == 2
    assert f"{copied} cannot be exported at step 6: not finite: 1 of " in said.err
    assert "no other checkpoint is better" in said.err
    assert not (tmp_path / "model").exists()


def test_of_checkpoints_that_are_not_finite_the_newest_intact_one_is_offered(
    copied: Path, tmp_path: Path, quintet: Quintet
) -> None:
    with_nan(copied, steps=(4, 6))
    said = quintet("export", copied, tmp_path / "model")
    assert said.status == 2
    _, *words = shlex.split(said.err.partition("an intact one: ")[2].partition(". Before")[0])
    assert words[-2:] == ["--step", "3"]
    assert quintet(*words).status == 0


@pytest.mark.parametrize(("by", "refused"), [(0.0, False), (5e-5, False), (2e-4, True)])
def test_a_graph_that_differs_from_its_model_is_refused(
    by: float, refused: bool, tmp_path: Path
) -> None:
    if not refused:
        (checked,) = export(piece(Wrong(by)), tmp_path, "torch-export")
        assert checked.findings[0].startswith(f"y: largest difference {by:.1e},")
        assert checked.any_size
        return
    with pytest.raises(
        RunError, match=r"it\.pt2 differs from the model: y: largest difference 2\.0e-04"
    ):
        export(piece(Wrong(by)), tmp_path, "torch-export")


def test_a_model_that_fixes_its_sizes_is_exported_at_them(tmp_path: Path) -> None:
    (checked,) = export(piece(Tied()), tmp_path, "torch-export")
    assert not checked.any_size


@pytest.mark.slow
def test_pictures_travel_as_programs_of_torch(
    trained: Path, tmp_path: Path, quintet: Quintet, run_code: RunCode
) -> None:
    out = tmp_path / "graphs"
    said = quintet("export", trained, out, "--format", "torch-export")
    assert said.status == 0, said.err
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "decode.pt2", "encode.pt2"]
    assert "ids: 100.00% equal" in said.out
    assert "largest difference" in said.out
    first, second = blocks(out / "README.md")
    encode, decode = run_code(first, out)["program"], run_code(second, out)["program"]
    model = library.load(trained)
    for count in (1, 5):
        images = torch.rand(count, 3, 32, 32)
        ids, latents = encode(images)
        assert ids.equal(model.tokenize(images))
        assert (latents - model.encode(images)).abs().max() <= 1e-4
        assert (decode(ids) - model.decode_from_ids(ids)).abs().max() <= 1e-4


@pytest.mark.slow
def test_continuous_latents_travel_as_programs_of_torch(
    continuous: Path, tmp_path: Path, quintet: Quintet, run_code: RunCode
) -> None:
    out = tmp_path / "graphs"
    said = quintet("export", continuous, out, "--format", "torch-export")
    assert said.status == 0, said.err
    assert "they have unit deviation" in (out / "README.md").read_text()
    first, second = blocks(out / "README.md")
    encode, decode = run_code(first, out)["program"], run_code(second, out)["program"]
    model, images = library.load(continuous), torch.rand(5, 3, 32, 32)
    (latents,) = encode(images)
    assert (latents - model.encode_latents(images)).abs().max() <= 1e-4
    assert (decode(latents) - model.decode_latents(latents)).abs().max() <= 1e-4


@pytest.mark.slow
def test_pictures_travel_as_onnx(
    trained: Path, tmp_path: Path, quintet: Quintet, run_code: RunCode
) -> None:
    out = tmp_path / "graphs"
    said = quintet("export", trained, out, "--format", "onnx")
    assert said.status == 0, said.err
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "decode.onnx", "encode.onnx"]
    first, second = (run_code(code, out) for code in blocks(out / "README.md"))
    assert first["ids"].shape == (2, 4, 4)
    assert second["images"].shape == (2, 3, 32, 32)
    model, images = library.load(trained), torch.rand(5, 3, 32, 32)
    ids, latents = first["session"].run(["ids", "latents"], {"images": images.numpy()})
    assert (torch.from_numpy(ids) == model.tokenize(images)).double().mean() > 0.99
    assert (torch.from_numpy(latents) - model.encode(images)).abs().max() <= 1e-4


def test_a_toy_travels_as_onnx(tmp_path: Path) -> None:
    import onnxruntime

    (checked,) = export(piece(nn.Linear(3, 3)), tmp_path, "onnx")
    (given,) = onnxruntime.InferenceSession(tmp_path / "it.onnx").get_inputs()
    assert (given.name, given.shape) == ("x", ["batch", 3])
    assert checked.any_size


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch-export", "onnx"])
@pytest.mark.parametrize("name", ROOMS)
def test_every_room_exports_what_it_can(
    name: str, form: str, tmp_path: Path, quintet: Quintet, run_code: RunCode
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert quintet("train", name, "--run", run, *SMALL, *ROOMS[name]).status == 0
    said = quintet("export", run, out, "--format", form)
    assert said.status == 0, said.err
    assert "fixed sizes" not in said.out
    for text in re.findall(r"([\d.e+-]+) apart", said.out):
        assert float(text) <= 1e-4
    assert all(float(share) >= 99 for share in re.findall(r"([\d.]+)% equal", said.out))
    for code in blocks(out / "README.md"):
        run_code(code, out)


@pytest.mark.parametrize("name", ["music/adopt", "image/clip"])
def test_a_model_without_graphs_is_refused_with_the_format_that_holds_it(name: str) -> None:
    sentence = rf"{name} does not support export as a graph \(--format safetensors holds all of it"
    with pytest.raises(RunError, match=sentence):
        _ = rooms.Family(*name.split("/")).export


def test_an_unknown_format_is_refused(trained: Path, tmp_path: Path, quintet: Quintet) -> None:
    assert quintet("export", trained, tmp_path / "x", "--format", "pickle").status == 2
    assert not (tmp_path / "x").exists()

"""The flow generator of images over the latents of any module of Python."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quintet
from harness import assert_same, tensors
from image.flow.test_flow import FEW, MODEL
from quintet import ImageFlow, ImageFlowTrainer, LatentModule
from quintet.engine.errors import RunError

SIDE = 16


class Tiny(nn.Module):
    """Two halves, as tiny autoencoders have them; a file for each in their folders."""

    def __init__(self, seed: int = 0, channels: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, channels, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(channels, 8, 1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 1)
        )


class Methods(nn.Module):
    """With methods in place of the halves."""

    def __init__(self, halves: nn.Module) -> None:
        super().__init__()
        self.halves: Any = halves

    def encode(self, pixels: Tensor) -> Any:
        return self.halves.encoder(pixels)

    def decode(self, latents: Tensor) -> Tensor:
        return self.halves.decoder(latents)


def trainer(module: nn.Module, run: Path, **changes: Any) -> ImageFlowTrainer:
    items = [{"image": torch.full((3, 16, 16), n / 12), "text": f"number {n}"} for n in range(12)]
    model = ImageFlow(LatentModule(module, pixels="0..1"), image_size=SIDE, **MODEL)
    sizes: dict[str, Any] = {"valid_fraction": 0.25, "count": 2, "sampling_steps": 2}
    return ImageFlowTrainer(model, items, **{**FEW, **sizes, "run": run, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("module") / "run"
    assert trainer(Tiny(), path).train() == 2
    return path


def test_factor_channels_and_range_are_found() -> None:
    halves, pixels = Tiny(), torch.rand(2, 3, SIDE, SIDE)
    plain = LatentModule(halves, pixels="0..1")
    signed = LatentModule(Methods(halves), pixels="-1..1")
    with torch.no_grad():
        first, second = halves.encoder(pixels), halves.encoder(pixels * 2 - 1)
        decoded = halves.decoder(second)
    assert (plain.factor, plain.quantiser.channels) == (2, 6)
    assert plain.to_codes(pixels).equal(first)
    assert signed.to_codes(pixels).equal(second)
    assert signed.decode_from_codes(second).equal((decoded * 0.5 + 0.5).clamp(0, 1))


def test_half_precision_is_kept_in_the_module() -> None:
    module = LatentModule(Tiny().bfloat16(), pixels="0..1")
    model = ImageFlow(module, image_size=SIDE, **MODEL)
    model.measure_latents(module.to_codes(torch.rand(4, 3, SIDE, SIDE).bfloat16()))
    assert model.generate(["a"], steps=1).dtype == torch.float32
    assert next(module.parameters()).dtype == torch.bfloat16


def test_a_run_is_resumed_with_the_module_and_with_no_other(tmp_path: Path) -> None:
    own, whole = tmp_path / "own", tmp_path / "whole"
    assert trainer(Tiny(), whole).train() == 2
    assert trainer(Tiny(), own, minutes=1e-9).train() == 1
    again = trainer(Tiny(), own)
    assert again.train(resume=True) == 2
    assert_same(tensors(own, 2), tensors(whole, 2))
    assert again.evaluate()["loss"] > 0
    assert again.generate(["number 3"], steps=2).shape == (1, 3, SIDE, SIDE)
    with pytest.raises(RunError, match=r"are those of Tiny \(pixels 0\.\.1, .* give the module"):
        trainer(Tiny(seed=1), own, steps=3).train(resume=True)
    assert ImageFlow.from_pretrained(own).config == again.model.config  # the run is as it was


def test_a_model_waits_for_its_module(run: Path, tmp_path: Path, cli: Any) -> None:
    with pytest.raises(RunError, match=r"code is not kept: .*set_tokenizer\(LatentModule"):
        quintet.load(run)
    refused = cli("sample", run, "--text", "a", "--out", tmp_path / "out")
    assert refused.status == 2
    assert "set_tokenizer" in refused.err
    model = ImageFlow.from_pretrained(run)
    with pytest.raises(ValueError, match=r"set_tokenizer\(…\)"):
        model.generate(["a"], steps=1)
    with pytest.raises(RunError, match="and not of Tiny"):
        model.set_tokenizer(LatentModule(Tiny(seed=1), pixels="0..1"))
    model.set_tokenizer(LatentModule(Tiny(), pixels="0..1"))
    made = model.generate(["a"], steps=1)
    again = ImageFlow.from_pretrained(model.save_pretrained(tmp_path / "model"))
    again.set_tokenizer(LatentModule(Tiny(), pixels="0..1"))
    assert again.generate(["a"], steps=1).equal(made)
    kept = quintet.engine.models.pretrained.read_weights(
        tmp_path / "model/tokenizer/model.safetensors"
    )
    assert_same(kept, {f"network.{name}": value for name, value in Tiny().state_dict().items()})


class Drawing(Tiny):
    def encode(self, pixels: Tensor) -> Tensor:
        return self.encoder(pixels) + torch.rand(1)


class Wrapped(Tiny):
    def encode(self, pixels: Tensor) -> Any:
        return (self.encoder(pixels),)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Linear(2, 2), "Linear has neither encode nor encoder: give a module with encode"),
        (nn.Identity(), "Identity has no parameters"),
        (Drawing(), "other latents of the same picture each time: let encode return the mean"),
        (Wrapped(), "encode of Wrapped returns tuple; it must return a tensor"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(module: nn.Module, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        LatentModule(module, pixels="0..1")
    with pytest.raises(TypeError, match="takes a VQGanVAE or AdoptedImages or LatentModule"):
        ImageFlow(module, image_size=SIDE)

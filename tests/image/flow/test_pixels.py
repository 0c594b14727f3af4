"""A flow over pixels, without a tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet
from image.flow.test_flow import FEW, MODEL, trained
from quintet import ImageFlow, ImageFlowTrainer, PixelLatents
from quintet.engine.config import ConfigError
from quintet.engine.machine.world import World
from quintet.engine.runs.folder import RunFolder
from quintet.image import recipes
from quintet.image.flow.task import build
from quintet.rooms import recorded


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pixels") / "run"
    narrow = ["--model.patch", 8, "--model.dim", 32, "--model.layers", 1]
    trained("image/flow_tiny", path, "--tokenizer", "pixels", *narrow)
    return path


def test_pixels_survive_as_they_are() -> None:
    pixels, images = PixelLatents(channels=1), torch.arange(256.0).view(1, 1, 16, 16) / 255
    codes = pixels.to_codes(images)
    assert torch.equal(codes.byte().flatten(), torch.arange(256).byte())
    assert torch.equal(pixels.decode_from_codes(codes.byte().float()), images)
    with pytest.raises(ValueError, match=r"expected images \(b, 1, h, w\), not \(1, 3, 2, 2\)"):
        pixels.to_codes(torch.zeros(1, 3, 2, 2))


def test_pixels_are_cached_in_bytes(run: Path) -> None:
    settings = replace(
        recorded(RunFolder.open(run).about, run)[1],
        tokenizer=str(run / "frozen/tokenizer"),
    )
    task = build(settings)
    task.prepare(World(settings))
    data: Any = task.data("train")
    item = data.keyed(2, None)
    assert item["codes"].dtype == torch.uint8
    assert torch.equal(item["codes"].mT.view(3, 32, 32), data.source.keyed(2, None)["image"])


def test_a_run_over_pixels_generates_paints_and_is_exported(
    run: Path, tmp_path: Path, cli: Any
) -> None:
    """From the folder alone; latents are pixels, so that a mask is kept to the pixel."""
    image, mask = tmp_path / "a.png", tmp_path / "m.png"
    values = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    Image.fromarray(values).save(image)
    white = np.zeros((32, 32), np.uint8)
    white[5:7, 9:12] = 255
    Image.fromarray(white).save(mask)
    words = ["--steps", "1", "--count", "1", "--out", tmp_path / "out"]
    assert cli("sample", run, "--text", "a star", "--size", "16", "48", *words).status == 0
    assert cli("sample", run, "--like", image, *words).status == 0
    painted = cli("sample", run, "--image", image, "--mask", mask, *words)
    after = np.asarray(Image.open(painted.out.split()[0]))
    assert (after[white == 0] == values[white == 0]).all()
    assert cli("export", run, tmp_path / "model").status == 0
    again = quintet.load(tmp_path / "model")
    assert isinstance(again.tokenizer, PixelLatents)
    first = quintet.load(run).generate(["a star"], steps=1)
    assert torch.equal(again.generate(["a star"], steps=1), first)


def test_a_patch_too_small_and_other_words_are_refused(tmp_path: Path, cli: Any) -> None:
    with pytest.raises(ConfigError, match=r"model\.patch is 2; it must be 4 or more"):
        replace(recipes.flow_tiny(), tokenizer="pixels")
    said = cli("train", "image/flow_tiny", "--tokenizer", "pixel", "--run", tmp_path / "run")
    assert said.status == 2
    assert "pixel" in said.err


def test_grey_pixels_are_trained_on_from_python(tmp_path: Path) -> None:
    items = [{"image": torch.rand(1, 16, 16), "text": f"number {n}"} for n in range(8)]
    model = ImageFlow(PixelLatents(channels=1), image_size=16, patch=4, **MODEL)
    few: dict[str, Any] = {**FEW, "valid_fraction": 0.0, "run": tmp_path / "run"}
    trainer = ImageFlowTrainer(model, items, **few)
    assert trainer.train() == 2
    assert trainer.generate(["number 3"], steps=2).shape == (1, 1, 16, 16)
    assert quintet.load(tmp_path / "run").config == model.config

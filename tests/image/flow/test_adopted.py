"""The flow generator of images over the latents of autoencoders of diffusers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adopting
import quintet
from adopting import IMAGES, folder
from harness import assert_same
from image.flow.test_flow import MODEL, SIDE, trained
from quintet import ImageFlow
from quintet.engine.runs.folder import RunFolder
from quintet.image import recipes
from quintet.image.adopt.model import AdoptedImages
from quintet.shared.flow.data import LatentData
from quintet.shared.generation.data import CaptionedPixels

diffusers: Any = adopting.Library("diffusers")

SMALL = ["--model.dim", 32, "--model.layers", 1]
CONTINUOUS = [*(name for name in IMAGES if name != "VQModel"), "AutoencoderKLWan"]
"""Classes with latents; one of clips takes images as single frames."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator of two steps over the latents of a folder that is gone since then."""
    path = tmp_path_factory.mktemp("flow")
    shutil.copytree(folder("AutoencoderKL"), path / "vae")
    trained("image/flow_tiny", path / "run", "--tokenizer", path / "vae", *SMALL)
    shutil.rmtree(path / "vae")
    return path / "run"


def test_a_run_keeps_the_autoencoder_of_a_folder(run: Path) -> None:
    original = AdoptedImages.from_pretrained(folder("AutoencoderKL"))
    model = quintet.load(run)
    assert_same(dict(original.state_dict()), dict(model.tokenizer.state_dict()))
    pixels = torch.rand(2, 3, SIDE, SIDE)
    latents = model.encode(pixels)
    restored = original.decode_from_codes(model.restored(latents))
    torch.testing.assert_close(model.decode(latents), restored)
    assert latents.std() == pytest.approx(1, abs=0.5)  # measured in training
    assert model.generate(["a star"], steps=1).shape == (1, 3, SIDE, SIDE)


def test_a_run_is_resumed_evaluated_and_sampled_by_its_folder_alone(
    run: Path, tmp_path: Path, cli: Any
) -> None:
    own = tmp_path / "own"
    shutil.copytree(run, own)
    for words in (
        ["resume", own, "--steps", 3],
        ["evaluate", own],
        ["sample", own, "--text", "a star", "--count", 1, "--steps", 1, "--out", tmp_path / "out"],
        ["export", own, tmp_path / "model"],
        ["evaluate", tmp_path / "model"],
    ):
        done = cli(*words)
        assert done.status == 0, done.err
    assert RunFolder.open(own).steps()[-1] == 3
    assert len([*(tmp_path / "out").glob("*-000.png")]) == 1


def test_a_model_and_its_autoencoder_survive_a_folder(run: Path, tmp_path: Path) -> None:
    model = ImageFlow.from_pretrained(run)
    again = ImageFlow.from_pretrained(model.save_pretrained(tmp_path / "model"))
    made = [each.generate(["a"], steps=1, seed=5) for each in (model, again)]
    assert torch.equal(*made)


@pytest.mark.by_default("AutoencoderKL", "AutoencoderDC", "AutoencoderKLFlux2")
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_every_class_with_latents_is_taken(kind: str) -> None:
    vae = ImageFlow.load_tokenizer(folder(kind))
    model = ImageFlow(vae, image_size=(32, 64), **MODEL).eval()
    pixels = torch.rand(2, 3, 32, 64)
    latents = vae.to_codes(pixels)
    assert latents.shape[1:] == (model.config.latent_channels, *model.config.grid)
    model.measure_latents(latents)
    torch.testing.assert_close(model.decode(model.encode(pixels)), vae.reconstruct(pixels))
    assert model.generate(["a"], steps=1).shape == (1, 3, 32, 64)


def test_a_codebook_and_a_codec_are_refused(tmp_path: Path, cli: Any) -> None:
    for kind, sentence in (
        ("VQModel", "has ids and no latents (its quantiser is vq)"),
        ("AutoencoderOobleck", "is a codec of sounds, not of images"),
    ):
        words = ["train", "image/flow_tiny", "--tokenizer", folder(kind), "--trackers"]
        refused = cli(*words, "--workers", 0, "--run", tmp_path / "run")
        assert refused.status == 2
        assert sentence in " ".join(refused.err.split())


def test_a_run_of_image_adopt_is_the_autoencoder_with_its_changes(tmp_path: Path, cli: Any) -> None:
    pixels = ["--images.size", SIDE, SIDE, "--images.builtin-count", 16]
    pixels += ["--images.valid-limit", 4, "--workers", 0]
    words = ["--from", folder("AutoencoderKL"), "--train", "lora", "--steps", 1, "--batch-size", 4]
    more = ["--losses.adversarial", "none", "--device", "cpu", "--trackers"]
    adopt, flow = tmp_path / "adopt", tmp_path / "flow"
    done = cli("train", "image/adopt_tiny", "--run", adopt, *words, *pixels, *more)
    assert done.status == 0, done.err
    trained("image/flow_tiny", flow, "--tokenizer", adopt, *SMALL)
    changed, kept = quintet.load(adopt), quintet.load(flow).tokenizer
    changed.merge()
    assert_same(dict(changed.state_dict()), dict(kept.state_dict()))


def test_channels_of_data_and_autoencoder_must_agree(tmp_path: Path, cli: Any) -> None:
    words = ["--tokenizer", folder("AutoencoderKL"), "--images.channels", 1, "--workers", 0]
    refused = cli("train", "image/flow_tiny", "--run", tmp_path / "run", "--trackers", *words)
    assert refused.status == 2
    sentence = "the tokenizer has 3 channels, and the data 1: set --images.channels to 3"
    assert sentence in " ".join(refused.err.split())


def test_fewer_large_pictures_are_encoded_together() -> None:
    data = recipes.flow_tiny().images
    sizes = (128, 256, 1024, 4096)
    sources = [CaptionedPixels([], "image", replace(data, size=(n, n))) for n in sizes]
    assert [LatentData(source, 1, "").batch for source in sources] == [256, 64, 4, 1]

"""ImageDecoderTrainer: the decoder of a module of Python."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness import assert_same, tensors
from image.flow.test_module import Methods, Tiny
from quintet import ImageDecoderTrainer, LatentModule
from quintet.engine.errors import RunError
from quintet.shared.tokenizer.config import DiscriminatorConfig


def trainer(module: nn.Module, run: Path, **changes: Any) -> ImageDecoderTrainer:
    keywords: dict[str, Any] = {
        "size": 32,
        "steps": 8,
        "batch_size": 4,
        "warmup_steps": 2,
        "warm_discriminator": 2,
        "learning_rate": 3e-3,
        "evaluate_every": 8,
        "save_every": 4,
        "workers": 0,
        "device": "cpu",
        "trackers": (),
        "progress": False,
        "discriminator": DiscriminatorConfig(dim=8, layers=1),
        "valid_limit": 8,
        "run": run,
        **changes,
    }
    return ImageDecoderTrainer(LatentModule(module, pixels="0..1"), **keywords)


def error(module: Any, pixels: Tensor) -> float:
    with torch.no_grad():
        return (module.decoder(module.encoder(pixels)) - pixels).square().mean().item()


def pictures() -> Tensor:
    return torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(1)).repeat_interleave(
        8, 2
    ).repeat_interleave(8, 3)  # fmt: skip


def test_the_decoder_learns_and_latents_stay(tmp_path: Path) -> None:
    module, before = Tiny(), Tiny()
    trained = trainer(module, tmp_path / "run", steps=40, losses={"adversarial": "none"})
    assert trained.train() == 40
    trained.averaged_model()
    pixels = pictures()
    assert module.encoder(pixels).equal(before.encoder(pixels))
    assert error(module, pixels) < 0.8 * error(before, pixels)


@pytest.mark.slow  # contract/test_recipes.py
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert trainer(Tiny(), whole).train() == 8
    assert trainer(Tiny(), parts, minutes=1e-9).train() == 1
    assert trainer(Tiny(), parts).train(resume=True) == 8
    assert_same(tensors(parts, 8), tensors(whole, 8))


def test_what_halves_share_stays_as_it_is() -> None:
    halves = Tiny(channels=8)
    halves.decoder[0] = halves.encoder[2]  # used by both
    model = LatentModule(Methods(halves), pixels="0..1")
    assert model.train_decoder() == []
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {"network.halves.decoder.3.weight", "network.halves.decoder.3.bias"}


def test_dropout_and_batch_statistics_rest() -> None:
    halves = Tiny()
    halves.decoder.append(nn.Dropout(0.9))
    halves.encoder.append(nn.BatchNorm2d(6))
    model = LatentModule(halves, pixels="0..1").train()
    pixels = pictures()
    assert model(pixels).output.equal(model(pixels).output)
    assert int(halves.encoder[-1].num_batches_tracked) == 0


def test_a_decoder_without_parameters_is_refused() -> None:
    halves = Tiny(channels=12)
    halves.decoder = nn.PixelShuffle(2)  # type: ignore[assignment]
    with pytest.raises(RunError, match="has no parameters of its own to train"):
        LatentModule(halves, pixels="0..1").train_decoder()


def test_encoders_are_not_trained(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="only the decoder"):
        trainer(Tiny(), tmp_path / "run", train="all")

"""What every adopted class promises: resume bit for bit, micro-batches and two processes with the
step of the whole batch, an export that its library reads, and a frozen half that stays to the
byte. The recipes' own contract (test_recipes.py) holds of one class each."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import adopting
import harness
import quintet
from adopting import CLIPS, IMAGES, SOUNDS, folder
from campaign.subjects import replaced
from quintet import rooms
from quintet.engine.errors import Stopped
from quintet.engine.launch import start
from quintet.media.clips.reader import frames_of
from quintet.media.clips.writer import write_mp4
from quintet.shared.adopt.folder import quiet
from video.tokenizer.test_cli import waves

diffusers: Any = adopting.Library("diffusers")
transformers: Any = adopting.Library("transformers")

CLASSES = [*IMAGES, *CLIPS, *SOUNDS]
# Residual codebooks; images are those of the recipes' own contract. The others take the same code;
# the first import of diffusers for clips takes longer than all else here.
QUICK = ("DacModel",)
MARKED = [pytest.param(k, marks=() if k in QUICK else pytest.mark.slow) for k in CLASSES]
EVERY = pytest.mark.parametrize("kind", MARKED, scope="module")
EVERY_CLIP = pytest.mark.parametrize(
    "kind", MARKED[len(IMAGES) : len(IMAGES) + len(CLIPS)], scope="module"
)
FRAMES = {"AutoencoderKLMochi": 7, "AutoencoderKLWan": 5, "AutoencoderKLTemporalDecoder": 3}
SIZES = {"AutoencoderKLWan": (16, 16)}  # the others need more for their strides
SMALL = {
    "workers": 0,
    "trackers": (),
    "device": "cpu",
    "log_every": 1,
    "evaluate_every": 0,
    "builtin_count": 16,
    "valid_limit": 2,
    "batch_size": 2,
    "dim": 8,
    "steps": 4,
    "warm_discriminator": 1,
    "seconds": 0.25,
    "valid_seconds": 0.25,
}


def recipe_of(kind: str) -> str:
    medium = "image" if kind in IMAGES else "video" if kind in CLIPS else "music"
    return f"{medium}/adopt_tiny"


def small(kind: str, **changes: Any) -> Any:
    recipe = rooms.recipe_function(recipe_of(kind))()
    shape = {"frames": FRAMES.get(kind, 9), "size": SIZES.get(kind, (32, 32))}
    return replaced(recipe, SMALL | shape | {"autoencoder": str(folder(kind))} | changes)


def taught(kind: str, recipe: Any, path: Path, mode: Any = "new") -> Path:
    """In this process, which has imported the library."""
    task = harness.task_of(recipe_of(kind), measured=False)
    how = {"name": recipe_of(kind), "mode": mode, "load": rooms.load, "progress": False}
    start(task, recipe, path, **how)  # type: ignore[arg-type]
    return path


def library(kind: str, path: Path) -> Any:
    owner = diffusers if hasattr(diffusers, kind) else transformers
    with quiet():
        return getattr(owner, kind).from_pretrained(path).eval()


@lru_cache
def decoder_run(kind: str, path: Path) -> Path:
    """Four steps of the decoder, the first of the discriminators alone."""
    return taught(kind, small(kind, save_every=2, keep_last=5), path / kind)


@pytest.fixture(scope="module")
def decoder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decoder_run(kind, tmp_path_factory.mktemp("decoder"))


@EVERY
def test_four_steps_are_two_and_two_more(kind: str, decoder: Path, tmp_path: Path) -> None:
    recipe = small(kind, save_every=2, keep_last=5)
    for mode in ("new", "resume"):
        with pytest.raises(Stopped):
            taught(kind, replace(recipe, minutes=1e-9), tmp_path / "cut", mode)
    taught(kind, recipe, tmp_path / "cut", "resume")
    harness.assert_same(harness.tensors(decoder, 4), harness.tensors(tmp_path / "cut", 4))
    assert harness.trajectory(decoder) == harness.trajectory(tmp_path / "cut")


@EVERY
def test_an_export_is_read_by_its_library_with_the_encoder_of_the_original(
    kind: str, decoder: Path, tmp_path: Path, cli: Any
) -> None:
    assert cli("export", decoder, tmp_path / "out").status == 0
    before, after = library(kind, folder(kind)), library(kind, tmp_path / "out")
    old, new = before.state_dict(), after.state_dict()
    assert {n: (v.dtype, v.shape) for n, v in old.items()} == {
        n: (v.dtype, v.shape) for n, v in new.items()
    }
    changed = {name for name in old if not old[name].equal(new[name])}
    assert changed
    own = {"decoder", "post_quant_conv", "decoder_transformer", "upsample"}
    assert {name.partition(".")[0] for name in changed} <= own
    config = (tmp_path / "out/config.json").read_bytes()
    assert config == (folder(kind) / "config.json").read_bytes()
    room = type(quintet.load(decoder))  # a class of clips may be adopted for images
    model, original = room.from_pretrained(tmp_path / "out"), room.from_pretrained(folder(kind))
    batch, kept = samples(kind), room.from_pretrained(decoder)
    with torch.no_grad():
        codes = model.to_codes(batch)
        assert codes.equal(original.to_codes(batch))
        model.to_codes(1 - batch)  # nothing of it is kept
        assert model.to_codes(batch).equal(codes)
        torch.testing.assert_close(model.decode_from_codes(codes), kept.decode_from_codes(codes))
        assert not model.decode_from_codes(codes).equal(original.decode_from_codes(codes))


@EVERY_CLIP
def test_videos_of_any_length_are_reconstructed_in_parts(
    kind: str, decoder: Path, tmp_path: Path, cli: Any
) -> None:
    clip, out = tmp_path / "clip.mp4", tmp_path / "out"
    write_mp4(clip, waves(14, 32, 32), 12)
    result = cli("sample", decoder, clip, "--chunk", 8, "--out", out)
    assert result.status == 0, result.err
    names = ["clip.comparison.mp4", "clip.reconstruction.mp4"]
    assert sorted(path.name for path in out.glob("[!.]*")) == names
    assert len([*frames_of(out / "clip.reconstruction.mp4")]) == 14
    latents = tmp_path / "a.latents.safetensors"
    latents.touch()
    refused = cli("sample", decoder, latents, "--out", out)
    assert refused.status == 2
    assert "videos or images" in refused.err


def samples(kind: str) -> Tensor:
    frames = FRAMES.get(kind, 9)
    generator = torch.Generator().manual_seed(1)
    if kind in SOUNDS:
        channels = quintet.load(folder(kind)).channels
        return torch.randn(2, channels, 2000, generator=generator) / 10
    shape = (2, 3, 32, 32) if kind in IMAGES else (2, 3, frames, 32, 32)
    return torch.rand(shape, generator=generator)


# -- steps of the whole batch ------------------------------------------------------------------


def whole(kind: str) -> Any:
    """All of it in fp64, without discriminators, whose penalties are of one micro-batch."""
    return small(kind, train="all", precision="fp64", batch_size=4, adversarial="none")


@pytest.fixture(scope="module")
def at_once(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught(kind, whole(kind), tmp_path_factory.mktemp("whole") / kind)


def assert_same_steps(one: Path, other: Path) -> None:
    """In fp64 nothing is left but the order of sums."""
    first, second = harness.tensors(one, 4), harness.tensors(other, 4)
    assert first.keys() == second.keys()
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.slow  # test_recipes.py holds one class to it
@EVERY
def test_two_micro_batches_give_the_step_of_the_whole(
    kind: str, at_once: Path, tmp_path: Path
) -> None:
    taught(kind, replace(whole(kind), batch_size=2, accumulate=2), tmp_path / "halves")
    assert_same_steps(at_once, tmp_path / "halves")


@pytest.fixture(scope="module")
def in_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All classes one after another, in the same two processes: they import the libraries once."""
    path = tmp_path_factory.mktemp("processes")
    runs = [(replace(whole(kind), batch_size=2), path / kind, recipe_of(kind)) for kind in CLASSES]
    harness.run_each(runs, size=2)
    return path


@pytest.mark.slow  # the libraries are imported by both
@pytest.mark.parametrize("kind", CLASSES, scope="module")
def test_two_processes_give_the_step_of_the_whole(
    kind: str, in_processes: Path, at_once: Path
) -> None:
    assert_same_steps(at_once, in_processes / kind)

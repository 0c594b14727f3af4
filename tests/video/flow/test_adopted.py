"""The flow generator of clips over the latents of autoencoders of diffusers."""

from pathlib import Path
from typing import Any

import pytest
import torch

import adopting
import quintet
from adopting import CLIPS, folder
from harness import assert_same
from quintet import VideoFlow
from quintet.engine.runs.folder import RunFolder
from quintet.video.adopt.model import AdoptedClips
from video.flow.test_flow import MODEL

diffusers: Any = adopting.Library("diffusers")

FRAMES, SIDE = 5, 16
WORDS = [
    *("--steps", 2, "--workers", 0, "--batch-size", 2, "--device", "cpu", "--trackers"),
    *("--videos.builtin-count", 8, "--videos.valid-limit", 2, "--videos.frames", FRAMES),
    *("--videos.size", SIDE, SIDE, "--model.dim", 32, "--model.layers", 1, "--model.patch", 1),
    *("--generation.count", 2, "--generation.reference-count", 2),
    *("--generation.sampling-steps", 1),
]
LENGTHS = {"AutoencoderKLMochi": 7, "AutoencoderKLCogVideoX": 9}
QUICK = ("AutoencoderKL", "AutoencoderKLLTXVideo")
"""The first is of images, and takes clips frame by frame."""
KINDS = [
    pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow)
    for kind in (*CLIPS, "AutoencoderKL")
]


@pytest.mark.slow  # the commands are those of images, in image/flow/test_adopted.py
def test_a_run_over_a_folder_is_resumed_evaluated_sampled_and_saved(
    tmp_path: Path, cli: Any
) -> None:
    run, wan = tmp_path / "run", folder("AutoencoderKLWan")
    sampled = ["--text", "a star", "--count", 1, "--steps", 1, "--frames", 8]
    for words in (
        ["train", "video/flow_tiny", "--run", run, "--tokenizer", wan, *WORDS],
        ["resume", run, "--steps", 3],
        ["evaluate", run],
        ["sample", run, *sampled, "--out", tmp_path / "out"],
    ):
        done = cli(*words)
        assert done.status == 0, done.err
    assert RunFolder.open(run).steps()[-1] == 3
    model, original = quintet.load(run), AdoptedClips.from_pretrained(wan)
    assert_same(dict(original.state_dict()), dict(model.tokenizer.state_dict()))
    again = VideoFlow.from_pretrained(model.save_pretrained(tmp_path / "model"))
    clip = torch.rand(3, 3, SIDE, SIDE)
    made = [each.generate(["a"], clip=clip, frames=8, steps=1) for each in (model, again)]
    assert torch.equal(*made)
    assert made[0].shape == (1, 3, 8, SIDE, SIDE)
    assert torch.equal(made[0][0, :, :3], clip)


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_is_taken(kind: str) -> None:
    vae, frames = VideoFlow.load_tokenizer(folder(kind)), LENGTHS.get(kind, FRAMES)
    model = VideoFlow(vae, image_size=(32, 64), frames=frames, **MODEL).eval()
    assert model.clip_shape == (frames, 32, 64)
    clips = torch.rand(1, 3, frames, 32, 64)
    latents = vae.to_codes(clips)
    assert latents.shape[1:] == (model.config.latent_channels, *model.config.grid)
    model.measure_latents(latents)
    torch.testing.assert_close(model.decode(model.encode(clips)), vae.reconstruct(clips))
    assert model.generate(["a"], steps=1).shape == clips.shape


@pytest.mark.by_default("AutoencoderKLMochi-*")
@pytest.mark.parametrize(
    ("kind", "frames", "sentence"),
    [
        ("AutoencoderKLMochi", 9, "9 frames do not fit the time factor 6: .* such as 7"),
        ("AutoencoderKLCogVideoX", 5, "does not keep clips of 5 frames: give 9 frames"),
    ],
)
def test_lengths_that_a_class_does_not_keep_are_refused(
    kind: str, frames: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        VideoFlow(AdoptedClips.from_pretrained(folder(kind)), image_size=32, frames=frames)

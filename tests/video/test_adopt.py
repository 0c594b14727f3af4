"""An adopted autoencoder of clips from the command line."""

from pathlib import Path
from typing import Any

import pytest

from adopting import Library, folder
from quintet.media.clips.reader import frames_of
from quintet.media.clips.writer import write_mp4
from video.test_cli import waves

diffusers: Any = Library("diffusers")


@pytest.fixture
def run(tmp_path: Path, cli: Any) -> Path:
    path = tmp_path / "run"
    flags = ("--steps", 2, "--batch-size", 2, "--workers", 0, "--device", "cpu", "--trackers")
    small = ("--videos.size", 32, 32, "--videos.frames", 9, "--evaluate-every", 0)
    few = ("--warm-discriminator", 1, "--videos.valid-limit", 2, "--videos.builtin-count", 4)
    chosen = ("--from", folder("AutoencoderKLWan"), "--run", path)
    result = cli("train", "video/adopt_tiny", *chosen, *flags, *small, *few)
    assert result.status == 0, result.err
    return path


def test_videos_of_any_length_are_reconstructed_in_parts(
    run: Path, tmp_path: Path, cli: Any
) -> None:
    clip, out = tmp_path / "clip.mp4", tmp_path / "out"
    write_mp4(clip, waves(14, 32, 32), 12)
    result = cli("sample", run, clip, "--chunk", 8, "--out", out)
    assert result.status == 0, result.err
    names = ["clip.comparison.mp4", "clip.reconstruction.mp4"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert len([*frames_of(out / "clip.reconstruction.mp4")]) == 14
    latents = tmp_path / "a.latents.safetensors"
    latents.touch()
    refused = cli("sample", run, latents, "--out", out)
    assert refused.status == 2
    assert "videos or images" in refused.err

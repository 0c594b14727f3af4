"""Clips per second of the video room's training step, both discriminators on.

    python benchmarks/video_speed.py [--size peer layers recipe tiny] [--batch-size 24] [--eager]
    python benchmarks/video_speed.py --peer "python bench_peers.py video_tokenizer …"

Runs training steps on random clips in memory, as a run would; with `--eager` also in fp32, neither
compiled nor captured. `layers` has the clips (17 x 128 x 128) and the layers of magvit2-pytorch's
README, in 56 M parameters where it has 118 M; `peer` is 1.5 times as wide, with as many parameters
as it. With `--peer` the other package's benchmark runs in the same call (a JSON line with
samples_per_s), and the exit status is 1 if Quintet is less than three times as fast.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from timing import Sides, counted_flops, timed_steps

from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.video import recipes
from quintet.video.tokenizer.config import VideoRecipe, VideoTokenizerConfig
from quintet.video.tokenizer.task import VideoTask


def recipe_of(size: str) -> VideoRecipe:
    recipe = recipes.tokenizer_tiny() if size == "tiny" else recipes.tokenizer()
    if size in ("peer", "layers"):  # the configuration's own defaults are the README's layers
        widths = {"init_dim": 96, "max_dim": 768} if size == "peer" else {}
        model = VideoTokenizerConfig(levels=(8, 8, 4, 4), **widths)  # 1,024 codes
        recipe = dataclasses.replace(recipe, model=model)
    losses = dataclasses.replace(recipe.losses, adversarial_from=0.0)
    return dataclasses.replace(recipe, losses=losses)


class RandomClips:
    """A few random clips in memory, so that loading costs almost nothing."""

    def __init__(self, recipe: VideoRecipe, length: int):
        shape = (32, 3, recipe.videos.frames, *recipe.videos.size)
        self.clips = torch.randint(0, 256, shape, dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def name(self, index: int) -> str:
        return f"sample {index}"

    def keyed(self, index: int, key: object) -> dict[str, Any]:
        return {"video": self.clips[index % 32], "still": False, "text": ""}


def make_run(recipe: VideoRecipe, path: Path) -> Run:
    task = VideoTask(recipe, sets={"train": RandomClips(recipe, 10**6), "valid": None})
    return Run(task, recipe, World(recipe), RunFolder.create(path, {}))


def operations(recipe: VideoRecipe) -> dict[str, float]:
    """Of a whole step, per clip, without the products of Muon: they are the same for any batch."""
    optim = dataclasses.replace(recipe.optim, optimizer="adamw")
    small = dataclasses.replace(recipe, batch_size=1, compile="off", workers=0, optim=optim)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(small, Path(folder) / "run")
        step = counted_flops(run, recipe.losses.penalty_every)
        run.close()
        return {"step": step}


def speed(recipe: VideoRecipe, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return timed_steps(lambda: make_run(recipe, Path(folder) / "run"), steps, "clips")


if __name__ == "__main__":
    sides = Sides("video_speed", "clips", batch_size=24, floor=3.0)
    sides.run(recipe_of, operations, speed)

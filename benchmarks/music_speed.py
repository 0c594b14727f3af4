"""Clips per second of the music room's training step.

    python benchmarks/music_speed.py [--size peer recipe tiny] [--batch-size 256] [--eager]
    python benchmarks/music_speed.py --peer "python bench_peers.py mulan --size base …"

Runs the engine's own steps on random sounds in memory, as a run would; with `--eager` also in fp32,
neither compiled nor captured. `peer` has musiclm-pytorch's sizes: both towers 768 wide and 12 deep,
10 seconds at 16 kHz in patches of 16 x 16 of which a quarter is left out, 256 ids of text. With
`--peer` the other package's benchmark runs first, in the same call (a JSON line with
samples_per_s); the exit status is 1 where ours is less than four times as fast.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from timing import Sides, counted_flops, measured, timed_steps

from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.music import recipes
from quintet.music.config import MusicDataConfig
from quintet.music.mulan.config import MuLaNConfig, MuLaNRecipe
from quintet.music.mulan.task import MuLaNTask


def recipe_of(size: str) -> MuLaNRecipe:
    if size == "tiny":
        return recipes.mulan_tiny()
    if size == "recipe":
        return recipes.mulan()
    model = MuLaNConfig(
        dim=768,
        layers=12,
        heads=12,
        text_dim=768,
        text_layers=12,
        text_heads=12,
        vocab_size=20_000,
    )
    return MuLaNRecipe(model=model, sounds=MusicDataConfig(seconds=10.0))


class RandomSounds:
    """A few random sounds in memory, all of one length, with ids for texts."""

    def __init__(self, recipe: MuLaNRecipe, length: int):
        samples = int(recipe.sounds.seconds * recipe.sounds.sample_rate)
        self.wavs = torch.randn(64, samples) * 0.1
        model = recipe.model
        self.ids = torch.randint(2, model.vocab_size, (64, model.text_length))
        self.length_of_all = length

    def __len__(self) -> int:
        return self.length_of_all

    def name(self, index: int) -> str:
        return f"sound {index}"

    def length(self, index: int) -> int:
        return self.wavs.shape[1]

    def keyed(self, index: int, key: object) -> dict[str, Any]:
        row = index % 64
        return {"wav": self.wavs[row], "tokens": self.ids[row], "text": ""}


def make_run(recipe: MuLaNRecipe, path: Path) -> Run:
    task = MuLaNTask(recipe, sets={"train": RandomSounds(recipe, 10**5), "valid": None})
    return Run(task, recipe, World(recipe), RunFolder.create(path, {}))


def operations(recipe: MuLaNRecipe) -> dict[str, float]:
    """Of a whole step per clip, and how long the spectrogram of a batch takes by itself."""
    small = dataclasses.replace(recipe, batch_size=4, compile="off", workers=0)
    with tempfile.TemporaryDirectory() as place:
        run = make_run(small, Path(place) / "run")
        step = counted_flops(run, 1)
        device = run.world.device
        samples = int(recipe.sounds.seconds * recipe.sounds.sample_rate)
        wavs = torch.randn(recipe.batch_size, samples, device=device)
        mel = run.parts["mulan"].module.audio.mel  # type: ignore[union-attr]
        mel(wavs)
        seconds = measured(lambda: mel(wavs), 10, device)
        run.close()
        return {"step": step, "spectrogram_ms": seconds * 1e3}


def speed(recipe: MuLaNRecipe, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        return timed_steps(lambda: make_run(recipe, Path(place) / "run"), steps, "clips")


if __name__ == "__main__":
    sides = Sides("music_speed", "clips", batch_size=256, floor=4.0)
    sides.run(recipe_of, operations, speed)

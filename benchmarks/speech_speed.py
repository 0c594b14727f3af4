"""Sequences per second of the speech room's training step, and its real-time factor.

    python benchmarks/speech_speed.py [--size peer recipe tiny] [--batch-size 64] [--eager]
    python benchmarks/speech_speed.py --peer "python bench_peers.py voicebox --size base …"

Runs the engine's own steps on random sequences in memory, as a run would; with `--eager` also in
fp32, neither compiled nor captured. `peer` has voicebox-pytorch's sizes: 512 wide, 24 deep, 16
heads of 64, 1,000 frames of 128 latents with an id each: the flow alone. Before it, the same
network over log-mels of as many frames with the aligner, and the real-time factor of sampling in
16 Euler steps (without the vocoder). With `--peer` the other package's benchmark runs first, in
the same call (a JSON line with samples_per_s); the exit status is 1 where ours is less than three
times as fast.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from timing import Sides, counted_flops, measured, timed_steps

from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.nn.flow import integrate
from quintet.speech import recipes
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets
from quintet.speech.voicebox.config import VoiceBoxRecipe
from quintet.speech.voicebox.task import VoiceBoxTask

LETTERS = 150
"""Characters per 1,000 frames, about ten seconds."""


def recipe_of(size: str) -> VoiceBoxRecipe:
    """The flow alone: latents, with an id for each frame."""
    sized = {"peer": recipes.voicebox, "recipe": recipes.voicebox, "tiny": recipes.voicebox_tiny}
    recipe = sized[size]()
    model = dataclasses.replace(recipe.model, features="latents", text="given")
    if size == "peer":
        wide = {"dim": 512, "depth": 24, "heads": 16, "head_dim": 64, "n_mels": 128}
        model = dataclasses.replace(model, **wide)
    seconds = (1000 if size == "peer" else 250) * model.hop_length / model.sample_rate - 1e-3
    recordings = SpeechDataConfig(max_seconds=seconds, text_length=LETTERS, buckets=1)
    return dataclasses.replace(recipe, model=model, recordings=recordings, data="python:random")


def with_aligner(recipe: VoiceBoxRecipe) -> VoiceBoxRecipe:
    model = dataclasses.replace(recipe.model, features="mel", text="learned", n_mels=100)
    return dataclasses.replace(recipe, model=model)


class RandomSequences:
    """A few random sequences of full length in memory."""

    def __init__(self, recipe: VoiceBoxRecipe, length: int):
        buckets, model = Buckets(recipe.recordings, recipe.model), recipe.model
        latents = model.features == "latents"
        shape = (buckets.frames, model.n_mels) if latents else (buckets.length(1),)
        self.audio = torch.randn(32, *shape) * (1.0 if latents else 0.1)
        letters = buckets.frames if latents else min(LETTERS, buckets.frames // 4)
        self.ids = torch.randint(3, 250, (32, letters))
        self.count, self.buckets = length, buckets

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"sequence {index}"

    def size(self, index: int) -> tuple[int, int]:
        return self.buckets.largest

    def keyed(self, index: int, key: object) -> dict[str, Any]:
        row = index % 32
        return {"audio": self.audio[row], "ids": self.ids[row], "text": ""}


def make_run(recipe: VoiceBoxRecipe, path: Path) -> Run:
    task = VoiceBoxTask(recipe, sets={"train": RandomSequences(recipe, 10**5), "valid": None})
    return Run(task, recipe, World(recipe), RunFolder.create(path, {}))


def operations(recipe: VoiceBoxRecipe) -> dict[str, float]:
    """FLOPs of a training step, per sequence."""
    small = dataclasses.replace(recipe, batch_size=2, compile="off", workers=0)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(small, Path(folder) / "run")
        step = counted_flops(run, 1)
        run.close()
        return {"step": step}


def speed(recipe: VoiceBoxRecipe, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return timed_steps(lambda: make_run(recipe, Path(folder) / "run"), steps, "sequences")


def real_time_factor(recipe: VoiceBoxRecipe, count: int = 8) -> float:
    """Seconds of computation per second of speech."""
    world = World(recipe)
    model = VoiceBoxTask(recipe).model.to(world.device).eval()
    size, channels = Buckets(recipe.recordings, recipe.model).frames, recipe.model.n_mels
    noise = torch.randn(count, size, channels, device=world.device)
    infill_mask = torch.ones(count, size, dtype=torch.bool, device=world.device)
    frame_ids = torch.randint(3, 250, (count, size), device=world.device)
    context = torch.zeros_like(noise)

    def field(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return model.velocity(x, time.expand(count), context, infill_mask, frame_ids, None)

    with torch.no_grad(), world.autocast():
        integrate(field, noise, 2, "euler")
        seconds = measured(lambda: integrate(field, noise, 16, "euler"), 3, world.device)
    return seconds / (count * size * recipe.model.hop_length / recipe.model.sample_rate)


if __name__ == "__main__":
    sides = Sides("speech_speed", "sequences", batch_size=64, floor=3.0)
    for size in sides.options.size:
        aligned = sides.sized(with_aligner(recipe_of(size)), size)
        row = speed(aligned, sides.options.steps)
        row |= {"size": size, "real_time_factor": real_time_factor(aligned)}
        what = {"benchmark": "speech_speed", "what": "with the aligner"}
        print(json.dumps(what | row), flush=True)
    sides.run(recipe_of, operations, speed)

"""Images per second of the image room's training step, with the critic on.

    python benchmarks/image_speed.py [--size peer|recipe|tiny] [--batch-size 64] [--steps 20]

Runs the engine's own steps on random images in memory: bf16, compiled, channels last; then eager
fp32 of the same task. `peer` has the inputs, the down-sampling and the number of parameters of the
VQGanVAE of muse-maskgit-pytorch (256 x 256, factor 16, 325 M + 49 M). The share of the matrix rate
is the step's floating-point operations, counted by torch, over the rate of a large bf16 product
measured in the same run.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from quintet.engine.folder import RunFolder
from quintet.engine.loop import take_step
from quintet.engine.run import Run
from quintet.engine.world import World
from quintet.image import recipes
from quintet.image.config import (
    DiscriminatorConfig,
    ImageDataConfig,
    VQGanRecipe,
    VQGanVAEConfig,
)
from quintet.image.task import VQGanTask
from quintet.shared.tokenizer_config import TokenizerLossConfig


def recipe_of(size: str) -> VQGanRecipe:
    losses = TokenizerLossConfig(adversarial_from=0.0)
    if size == "tiny":
        return dataclasses.replace(recipes.vqgan_tiny(), losses=losses)
    if size == "recipe":
        return dataclasses.replace(recipes.vqgan(), losses=losses)
    return VQGanRecipe(
        model=VQGanVAEConfig(
            dim=256,
            patch=4,
            multipliers=(1, 2, 4),
            blocks=(4, 3, 6),
            attention_layers=1,
            levels=(8, 8, 8, 8, 16),
        ),
        discriminator=DiscriminatorConfig(dim=256, layers=4),
        images=ImageDataConfig(size=(256, 256)),
        losses=losses,
    )


class RandomImages:
    """A few random pictures in memory, so that loading costs next to nothing."""

    def __init__(self, size: tuple[int, int], length: int):
        self.pictures = torch.randint(0, 256, (64, 3, *size), dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def keyed(self, index: int, key: object) -> dict[str, Any]:
        return {"image": self.pictures[index % 64], "text": ""}


def matrix_rate(device: torch.device, size: int) -> float:
    """Floating-point operations per second of a bf16 product of random matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    seconds = measured(lambda: a @ b, 10, device)
    return 2 * size**3 / seconds


def measured(call: Any, times: int, device: torch.device) -> float:
    synchronise(device)
    begin = time.perf_counter()
    for _ in range(times):
        call()
    synchronise(device)
    return (time.perf_counter() - begin) / times


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def operations(recipe: VQGanRecipe) -> tuple[float, float]:
    """Per image: the whole step's operations, and the tokenizer's forward alone."""
    small = dataclasses.replace(recipe, batch_size=2, compile="off", workers=0)
    with tempfile.TemporaryDirectory() as place:
        run = make_run(small, Path(place) / "run")
        take_step(run)  # the penalty is due at step 0; count a plain step
        with FlopCounterMode(display=False) as counter:
            take_step(run)
        step = counter.get_total_flops() / 2
        vae = run.parts["vae"].module.eval()
        image = torch.rand(1, 3, *recipe.images.size, device=run.world.device)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            vae(image)
        run.close()
        return step, counter.get_total_flops()


def make_run(recipe: VQGanRecipe, path: Path) -> Run:
    data = RandomImages(recipe.images.size, 10**6)
    task = VQGanTask(recipe, sets={"train": data, "valid": None})
    return Run(task, recipe, World(recipe), RunFolder.create(path, {}))


def timed_steps(run: Run, steps: int, warm_up: int, what: str) -> dict[str, Any]:
    """Speed, memory and waiting of a run's own steps; `what` is what its samples are called."""
    device, batch = run.world.device, run.recipe.batch_size
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(warm_up):
        take_step(run)
    synchronise(device)
    warmed = time.perf_counter() - begin
    run.stream.waited = 0.0
    seconds = measured(lambda: take_step(run), steps, device)
    row: dict[str, Any] = {
        "precision": run.world.precision,
        "compiled": run.world.compiles,
        "batch": batch,
        f"{what}_per_second": batch / seconds,
        "ms_per_step": seconds * 1e3,
        "warm_up_s": warmed,
        "waiting": run.stream.waited / (seconds * steps),
        "parameters_m": {
            n: round(sum(p.numel() for p in part.parameters.values()) / 1e6, 1)
            for n, part in run.parts.items()
        },
    }
    if device.type == "cuda":
        row["gib"] = torch.cuda.max_memory_allocated() / 2**30
    run.close()
    return row


def speed(recipe: VQGanRecipe, steps: int, warm_up: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        return timed_steps(make_run(recipe, Path(place) / "run"), steps, warm_up, "images")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="peer", choices=("peer", "recipe", "tiny"))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--no-eager", action="store_true")
    asked = parser.parse_args()
    base = dataclasses.replace(
        recipe_of(asked.size),
        device=asked.device,
        batch_size=asked.batch_size,
        steps=10**6,
        workers=asked.workers,
        trackers=(),
    )
    world = World(base)
    rate = matrix_rate(world.device, 8192 if world.device.type == "cuda" else 1024)
    step, forward = operations(base)
    sides = [base]
    if not asked.no_eager:
        sides.append(dataclasses.replace(base, precision="fp32", compile="off"))
    for recipe in sides:
        row = speed(recipe, asked.steps, warm_up=8)
        row |= {
            "benchmark": "image_speed",
            "size": asked.size,
            "matrix_tflops": rate / 1e12,
            "forward_gflop": forward / 1e9,
            "step_gflop": step / 1e9,
            "share_of_matrix_rate": row["images_per_second"] * step / rate,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

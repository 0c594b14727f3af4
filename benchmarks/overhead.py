"""Overhead of the engine over a plain PyTorch loop: same network, batch and precision, interleaved.

    python benchmarks/overhead.py [--device cpu|cuda] [--size small|recipe] [--blocks 40]

`small` is a network of few operations, `recipe` the tokenizer of image/vqgan.
Both sides load with torch's DataLoader, clip, step a fused AdamW, keep an EMA, and show
their loss every 10 steps. The engine's side is `take_step` and `report` as the loop calls them.
Blocks of the two alternate, and which side begins changes too. The verdict is the median of the
ratios of neighbouring blocks, which a drifting machine disturbs least: past 3 % on a CPU or 2 % on
a GPU the exit status is 1. The ratio of medians and each side's spread are shown beside it.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from quintet.engine.config import OptimizerConfig
from quintet.engine.ema import decay_at
from quintet.engine.keys import Key
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.sinks import Journal
from quintet.engine.trainer import AnyRecipe, AnyTask
from quintet.engine.when import When
from quintet.image import recipes
from quintet.image.vqgan.config import VQGanVAEConfig
from quintet.image.vqgan.model import VQGanVAE


class WithLoss(nn.Module):
    """The tokenizer with its L1, so that both sides call one module."""

    def __init__(self, config: VQGanVAEConfig):
        super().__init__()
        self.vae = VQGanVAE(config)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        made = self.vae(image)
        return (made.output - image).abs().mean() + made.quantiser_loss


class Images:
    def __init__(self, size: int):
        self.values = torch.rand(64, 3, size, size)

    def __len__(self) -> int:
        return 65536

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": self.values[index % 64]}

    def keyed(self, index: int, key: Key | None) -> dict[str, torch.Tensor]:
        """As the rooms' data: randomness comes from the key, so no global state is seeded."""
        return self[index]


class Bare:
    def __init__(self, module: nn.Module, data: Images, recipe: AnyRecipe, world: World):
        self.module, self.world = module, world
        gpu = world.device.type == "cuda"
        loader = DataLoader(
            data,
            batch_size=recipe.batch_size,
            shuffle=True,
            drop_last=True,
            workers=recipe.workers,
            pin_memory=gpu,
            prefetch_factor=4 if recipe.workers else None,
            persistent_workers=recipe.workers > 0,
        )
        self.batches = (batch for _ in itertools.count() for batch in loader)
        if world.compiles:
            module.compile(dynamic=False)
        self.parameters = list(module.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, betas=(0.9, 0.99), fused=True)
        self.step = 0

    def run(self, steps: int) -> None:
        total = torch.zeros((), device=self.world.device)
        for _ in range(steps):
            image = next(self.batches)["image"].to(self.world.device, non_blocking=True)
            with self.world.autocast():
                loss = self.module(image)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            weight = 1 - decay_at(0.999, self.step)
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], weight)
            total += loss.detach()
            self.step += 1
            if self.step % 10 == 0:
                total.item()


class Engine:
    def __init__(self, module: nn.Module, data: Images, recipe: AnyRecipe, world: World, at: Path):
        task = AnyTask(module, {"train": data, "valid": None}, recipe.optim)
        folder = RunFolder.create(at, {})
        self.inner = Run(task, recipe, world, folder, [Journal(folder)])

    def run(self, steps: int) -> None:
        for _ in range(steps):
            take_step(self.inner)
            if When(self.inner.recipe.log_every).due(self.inner.step):
                self.inner.report()


def timed(side: Bare | Engine, steps: int, world: World) -> float:
    synchronise(world)
    begin = time.perf_counter()
    side.run(steps)
    synchronise(world)
    return (time.perf_counter() - begin) / steps


def synchronise(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=("small", "recipe"), help="recipe on a GPU, else small")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    size = options.size or ("recipe" if gpu else "small")
    small = VQGanVAEConfig(
        dim=256 if gpu else 64, patch_size=4, channel_multipliers=(1, 2), num_res_blocks=(1,)
    )
    config = small if size == "small" else recipes.vqgan().model
    recipe = AnyRecipe(
        steps=10**6,
        batch_size=64 if gpu else 16,
        workers=4 if gpu else 0,
        log_every=10,
        device=options.device,
        compile="auto",
        optim=OptimizerConfig(warmup_steps=0, scheduler="constant"),
    )
    world, data = World(recipe), Images(128 if gpu else 64)
    torch.manual_seed(0)
    bare = Bare(WithLoss(config).to(world.device), data, recipe, world)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(WithLoss(config), data, recipe, world, Path(folder) / "run")
        sides: dict[str, Bare | Engine] = {"bare": bare, "engine": engine}
        for side in sides.values():
            timed(side, options.steps, world)
        found: dict[str, list[float]] = {"bare": [], "engine": []}
        for block in range(options.blocks):
            for name in ("bare", "engine") if block % 2 else ("engine", "bare"):
                found[name].append(timed(sides[name], options.steps, world))
        engine.inner.close()
    middle = {name: statistics.median(values) for name, values in found.items()}
    paired = statistics.median(e / b for e, b in zip(found["engine"], found["bare"]))
    print(f"{'side':8} {'ms per step':>12} {'fastest':>9} {'slowest':>9}")
    for name, values in found.items():
        low, high = min(values), max(values)
        print(f"{name:8} {middle[name] * 1e3:12.2f} {low * 1e3:9.2f} {high * 1e3:9.2f}")
    print(f"engine / bare: medians {middle['engine'] / middle['bare']:.4f}, paired {paired:.4f}")
    limit = 1.02 if gpu else 1.03
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "limit": limit,
                "device": options.device,
                "size": size,
                "precision": world.precision,
                "bare_ms": middle["bare"] * 1e3,
                "engine_ms": middle["engine"] * 1e3,
                "ratio": middle["engine"] / middle["bare"],
                "paired_ratio": paired,
            }
        )
    )
    sys.exit(1 if paired > limit else 0)


if __name__ == "__main__":
    main()

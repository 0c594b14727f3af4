"""Images per second of the image room's training step, with the discriminator on.

    python benchmarks/image_speed.py [--size peer recipe tiny] [--batch-size 64] [--eager]
    python benchmarks/image_speed.py --peer "python bench_peers.py image_vqgan --size base …"

Runs training steps on random images in memory, as a run would; with `--eager` also in fp32, neither
compiled nor captured. `peer` has the inputs, the downsampling and the number of parameters of the
VQGanVAE of muse-maskgit-pytorch (256 x 256, factor 16, 325 M + 49 M). The utilisation is the FLOPs
of a step, counted by torch with the penalty in its turn, over the rate of a large bf16 matrix
product measured in the same run. With `--peer` the other package's benchmark runs first, in the
same call (a JSON line with samples_per_s); the exit status is 1 if Quintet is less than three times
as fast.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from timing import Sides, counted_flops, timed_steps
from torch.utils.flop_counter import FlopCounterMode

from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.image import recipes
from quintet.image.config import ImageDataConfig
from quintet.image.vqgan.config import VQGanRecipe, VQGanVAEConfig
from quintet.image.vqgan.task import VQGanTask
from quintet.shared.tokenizer.config import DiscriminatorConfig, TokenizerLossConfig


def recipe_of(size: str) -> VQGanRecipe:
    losses = TokenizerLossConfig(adversarial_from=0.0)
    if size == "tiny":
        return dataclasses.replace(recipes.vqgan_tiny(), losses=losses)
    if size == "recipe":
        return dataclasses.replace(recipes.vqgan(), losses=losses)
    return VQGanRecipe(
        model=VQGanVAEConfig(
            dim=256,
            patch_size=4,
            channel_multipliers=(1, 2, 4),
            num_res_blocks=(4, 3, 6),
            attention_layers=1,
            levels=(8, 8, 8, 8, 16),
        ),
        discriminator=DiscriminatorConfig(dim=256, layers=4),
        images=ImageDataConfig(size=(256, 256)),
        losses=losses,
    )


class RandomImages:
    """A few random images in memory, so that loading costs almost nothing."""

    def __init__(self, size: tuple[int, int], length: int):
        self.images = torch.randint(0, 256, (64, 3, *size), dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def name(self, index: int) -> str:
        return f"sample {index}"

    def keyed(self, index: int, key: object) -> dict[str, Any]:
        return {"image": self.images[index % 64], "text": ""}


def operations(recipe: VQGanRecipe) -> dict[str, float]:
    """Per image: the whole step's operations, without the products of Muon, which are the same for
    any batch, and the tokenizer's forward alone."""
    optim = dataclasses.replace(recipe.optim, optimizer="adamw")
    small = dataclasses.replace(recipe, batch_size=2, compile="off", workers=0, optim=optim)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(small, Path(folder) / "run")
        step = counted_flops(run, recipe.losses.penalty_every)
        vae = run.parts["vae"].module.eval()
        image = torch.rand(1, 3, *recipe.images.size, device=run.world.device)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            vae(image)
        run.close()
        return {"step": step, "forward_gflop": counter.get_total_flops() / 1e9}


def make_run(recipe: VQGanRecipe, path: Path) -> Run:
    data = RandomImages(recipe.images.size, 10**6)
    task = VQGanTask(recipe, sets={"train": data, "valid": None})
    return Run(task, recipe, World(recipe), RunFolder.create(path, {}))


def speed(recipe: VQGanRecipe, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return timed_steps(lambda: make_run(recipe, Path(folder) / "run"), steps, "images")


if __name__ == "__main__":
    sides = Sides("image_speed", "images", batch_size=64, floor=3.0)
    sides.run(recipe_of, operations, speed)

"""Training of the image tokenizer: a VQGanVAE and its discriminator (shared/tokenizer/task.py)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.engine.task import Batch, Exhibit, Measured, Rows, Task
from quintet.image import data
from quintet.image.adopt.config import ImageAdoptRecipe
from quintet.image.clip.config import ClipRecipe
from quintet.image.config import MaskGitRecipe, VQGanRecipe
from quintet.image.maskgit_task import MaskGitTask
from quintet.image.model import VQGanVAE
from quintet.media.pixels import grid, write_png
from quintet.nn.adversarial.discriminator import PatchDiscriminator
from quintet.nn.similarity import psnr, ssim
from quintet.shared.tokenizer.pixels import bicubic, displayed, enlarged, to_bytes
from quintet.shared.tokenizer.task import TokenizerTask


class VQGanTask(TokenizerTask):
    main = "vae"
    field = "image"

    def __init__(self, recipe: VQGanRecipe, model: VQGanVAE | None = None, sets: Any = None):
        self.recipe = recipe
        torch.manual_seed(fold(recipe.seed, "weights"))
        vae = model if model is not None else VQGanVAE(recipe.model)
        discriminator = PatchDiscriminator(
            channels=vae.config.channels, **asdict(recipe.discriminator)
        )
        super().__init__(recipe, vae, {"discriminator": discriminator}, sets)

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        recipe = self.recipe
        return data.open_data(recipe.data, recipe.images, split, recipe.seed)  # type: ignore[arg-type]

    def collate(self, items: list[Any]) -> Any:
        return data.collate(items)

    def real(self, batch: Batch) -> Tensor:
        return super().real(batch).contiguous(memory_format=torch.channels_last)

    # -- evaluation -------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        real = self.real(batch)
        output = nets["vae"](real)
        reconstruction = output.output.clamp(0, 1)
        mean = real.mean((2, 3), keepdim=True).expand_as(real)
        return {
            "psnr": Rows(psnr(reconstruction, real)),
            "ssim": Rows(ssim(reconstruction, real)),
            "l1": Rows((reconstruction - real).abs().flatten(1).mean(1)),
            "sharpness": Rows(
                total_variation(reconstruction) / total_variation(real).clamp_min(1e-6)
            ),
            "psnr_mean_colour": Rows(psnr(mean, real)),
            "psnr_bicubic": Rows(psnr(bicubic(real, self.tokenizer.factor).clamp(0, 1), real)),
            **{name: Rows(row) for name, row in self.tokenizer.quantiser.rows(output).items()},
        }

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        real = self.real(batch)
        reconstruction = nets["vae"](real).output.clamp(0, 1)
        return [ReconstructionSheet("reconstructions", real[:8], reconstruction[:8])]


def build(recipe: Any) -> Task:
    if isinstance(recipe, ClipRecipe):
        from quintet.image.clip.task import ClipTask

        return ClipTask(recipe)
    if isinstance(recipe, ImageAdoptRecipe):
        from quintet.image.adopt.task import ImageAdoptTask

        return ImageAdoptTask(recipe)
    return MaskGitTask(recipe) if isinstance(recipe, MaskGitRecipe) else VQGanTask(recipe)


def total_variation(images: Tensor) -> Tensor:
    """(b,): mean absolute difference of neighbouring pixels; lower for blurred images."""
    across, down = images.diff(dim=-1).abs(), images.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)


@dataclass
class ReconstructionSheet:
    """Original, reconstruction and difference, one row per image."""

    name: str
    real: Tensor
    reconstruction: Tensor

    def write(self, folder: Path) -> list[Path]:
        triples = [
            (real, fake, (real - fake).abs().clamp(0, 1))
            for real, fake in zip(self.real, self.reconstruction)
        ]
        rows = [[enlarged(displayed(to_bytes(image))) for image in triple] for triple in triples]
        path = folder / f"{self.name}.png"
        write_png(path, grid(rows, ["original", "reconstruction", "difference"]))
        return [path]

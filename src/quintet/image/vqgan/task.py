"""Training of the image tokenizer: a VQGanVAE and its discriminator (shared/tokenizer/task.py)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.engine.task import Batch, Exhibit, Measured, Rows
from quintet.image import data
from quintet.image.vqgan.config import VQGanRecipe
from quintet.image.vqgan.model import VQGanVAE
from quintet.media.pixels import write_png
from quintet.media.sheets import grid
from quintet.nn.adversarial.discriminator import PatchDiscriminator
from quintet.nn.similarity import psnr, sharpness, ssim
from quintet.shared.tokenizer.pixels import COMPARED, bicubic, compared
from quintet.shared.tokenizer.task import TokenizerTask


class VQGanTask(TokenizerTask):
    main = "vae"
    field, settings, room = "image", "images", data

    def __init__(self, recipe: VQGanRecipe, model: VQGanVAE | None = None, sets: Any = None):
        self.recipe = recipe
        torch.manual_seed(fold(recipe.seed, "weights"))
        vae = model if model is not None else VQGanVAE(recipe.model)
        discriminator = PatchDiscriminator(
            channels=vae.config.channels, **asdict(recipe.discriminator)
        )
        super().__init__(recipe, vae, {"discriminator": discriminator}, sets)

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
            "sharpness": Rows(sharpness(reconstruction, real)),
            "psnr_mean_colour": Rows(psnr(mean, real)),
            "psnr_bicubic": Rows(psnr(bicubic(real, self.tokenizer.factor).clamp(0, 1), real)),
            **{name: Rows(row) for name, row in self.tokenizer.quantiser.rows(output).items()},
        }

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        real = self.real(batch)
        reconstruction = nets["vae"](real).output.clamp(0, 1)
        return [ReconstructionSheet("reconstructions", real[:8], reconstruction[:8])]


@dataclass
class ReconstructionSheet:
    """Original, reconstruction and difference, one row per image."""

    name: str
    real: Tensor
    reconstruction: Tensor

    def write(self, folder: Path) -> list[Path]:
        path = folder / f"{self.name}.png"
        write_png(path, grid(compared(self.real, self.reconstruction), COMPARED))
        return [path]


build = VQGanTask

"""The image tokenizer's task: a VQGanVAE, and a critic that starts late.

pictures ─ vae ─> reconstruction ─ l1, l2, perceptual ─────────────┐
                        │                                          ├─> the tokenizer's update
                        ├─ critic, frozen ─ adversarial x balance ─┘
                        └─ detached, kept ─> critic ─ hinge + penalty ─> the critic's update
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.health import Monitor, Resting, below
from quintet.engine.keys import fold, normal
from quintet.engine.task import At, Batch, Exhibit, Loss, Measured, Part, Rows, Task, Update, each
from quintet.engine.when import When
from quintet.image import data
from quintet.image.config import VQGanRecipe
from quintet.image.model import Discriminator, VQGanVAE
from quintet.media.pixels import grid, write_png
from quintet.nn import adversarial
from quintet.nn.balancer import Balancer
from quintet.nn.perceptual import StructuralDistance
from quintet.nn.similarity import psnr, ssim
from quintet.nn.vgg import VGGDistance

SIGMA = 0.01


def build(recipe: VQGanRecipe) -> "VQGanTask":
    return VQGanTask(recipe)


def load_image(batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pictures in 0..1, channels last; they travel as bytes, a quarter of the way to the device."""
    image = batch.data["image"]
    image = image.to(dtype) / 255 if image.dtype == torch.uint8 else image
    return image.contiguous(memory_format=torch.channels_last)


class VQGanTask(Task):
    main = "vae"
    best = ("psnr", "max")

    def __init__(self, recipe: VQGanRecipe, model: VQGanVAE | None = None, sets: Any = None):
        self.recipe, self.losses, self.sets = recipe, recipe.losses, sets
        self.dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        torch.manual_seed(fold(recipe.seed, "weights"))
        vae = model if model is not None else VQGanVAE(recipe.model)
        self.perceptual = bool(self.losses.perceptual)
        self.balancer = Balancer(
            share=self.losses.adversarial_share, cap=self.losses.adversarial_cap
        )
        self.parts = {"vae": Part(channels_last(vae), recipe.vae, aside=self.balancer)}
        self.updates = [Update("vae", each(self.vae_loss))]
        if self.perceptual:
            vgg = self.losses.vgg
            self.parts["distance"] = Part(VGGDistance(vgg) if vgg else StructuralDistance())
        self.adversarial = self._add_critic()
        self.monitors = self._monitors()

    def _add_critic(self) -> When:
        """The tokenizer's adversarial term and the critic's update share one When."""
        if self.losses.adversarial == "none":
            return When(every=0)
        when = When(start=self.recipe.adversarial_start)
        lecam = self.losses.penalty == "lecam"
        self.lecam = adversarial.LeCam() if lecam else None
        self.penalty = When(every=self.losses.penalty_every, start=when.start).inside(when)
        critic = channels_last(Discriminator(self.recipe.discriminator))
        # Live and frozen it would be compiled twice, and was no faster for it (docs/log.md).
        self.parts["critic"] = Part(critic, self.recipe.critic, compiles=False, aside=self.lecam)
        self.updates.append(Update("critic", each(self.critic_loss), when))
        return when

    def _monitors(self) -> list[Monitor]:
        return [
            below(
                "val/codebook_use", 0.05, "the codes have collapsed; try fsq, or a lower rate", 2
            ),
            below("vae/spread", 1e-3, "the output is constant", 5),
            Resting("critic/loss", "the critic has won; lower its rate", -1.0, 0.01, patience=20),
            Resting("critic/gap", "the critic is at chance; raise its rate", -1e-3, 1e-3, 40),
        ]

    # -- data -------------------------------------------------------------------------------

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        recipe = self.recipe
        return data.open_data(recipe.data, recipe.images, split, recipe.seed)  # type: ignore[arg-type]

    def collate(self, items: list[Any]) -> Any:
        return data.collate(items)

    def check(self, data: Any) -> None:
        image = data["image"]
        if image.dtype == torch.uint8:
            return
        low, high = image.min().item(), image.max().item()
        if low < -1e-3 or high > 1 + 1e-3:
            raise ValueError(
                f"image values reach from {low:.3g} to {high:.3g}, but the model takes 0 to 1; "
                "divide by 255, or give uint8 tensors, which are divided for you"
            )

    # -- the two updates --------------------------------------------------------------------

    def vae_loss(self, nets: Mapping[str, Any], batch: Batch, at: At) -> Loss:
        real = load_image(batch, self.dtype)
        made = nets["vae"](real)
        at.scratch.setdefault("pairs", []).append((real, made.images.detach()))
        picture, term, weight = made.images, None, None
        if self.adversarial.due(at.step):
            ramp = min(1.0, (at.step - self.adversarial.start + 1) / self.losses.adversarial_ramp)
            picture, judged = self.balancer.split(made.images, ramp)
            term, weight = self._fool(nets["critic"], real, judged), self.balancer.applied(ramp)
        loss, metrics = self._reconstruction(nets, real, picture)
        loss = loss + made.quantiser_loss
        metrics |= {"quantiser": made.quantiser_loss, "spread": picture.detach().std(0).mean()}
        if term is not None and weight is not None:
            loss = loss + weight * term
            metrics |= {"adversarial": term, "adversarial_weight": weight}
        return loss, {"loss": loss, **metrics}

    def _reconstruction(
        self, nets: Mapping[str, Any], real: Tensor, picture: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        error = picture - real
        l1, l2 = error.abs().mean(), error.square().mean()
        loss = self.losses.l1 * l1 + self.losses.l2 * l2
        metrics = {"l1": l1, "psnr": psnr(picture.detach(), real).mean()}
        if self.perceptual:
            distance = nets["distance"](picture, real).mean()
            loss = loss + self.losses.perceptual * distance
            metrics["perceptual"] = distance
        return loss, metrics

    def _fool(self, critic: nn.Module, real: Tensor, judged: Tensor) -> Tensor:
        if self.losses.adversarial == "hinge":
            return adversarial.hinge_generator(critic(judged)).mean()
        on_real, on_fake = critic(torch.cat([real, judged])).chunk(2)
        return adversarial.relativistic_generator(on_real, on_fake).mean()

    def critic_loss(self, nets: Mapping[str, Any], batch: Batch, at: At) -> Loss:
        real, made = at.scratch["pairs"].pop(0)
        punished = self.penalty.due(at.step)
        on_real, on_fake = nets["critic"](torch.cat([real, made])).chunk(2)
        if self.losses.adversarial == "hinge":
            loss = adversarial.hinge_discriminator(on_real, on_fake).mean()
        else:
            loss = adversarial.relativistic_discriminator(on_real, on_fake).mean()
        gap = on_real.detach().float().mean() - on_fake.detach().float().mean()
        metrics = {"loss": loss, "gap": gap}
        if punished and self.losses.penalty != "none":
            penalty = self._penalty(nets["critic"], batch, real, on_real, on_fake).mean()
            loss = loss + self.losses.penalty_weight * self.losses.penalty_every * penalty
            metrics["penalty"] = penalty
        return loss, metrics

    def _penalty(
        self, critic: Any, batch: Batch, real: Tensor, on_real: Tensor, on_fake: Tensor
    ) -> Tensor:
        """One value per sample. R1 runs on the eager critic in fp32: a double backward cannot be
        compiled, and a small difference would drown in bf16."""
        if self.losses.penalty == "lecam":
            assert self.lecam is not None
            return self.lecam(on_real, on_fake)
        if self.losses.penalty == "r1":
            return adversarial.r1_exact(critic.eager, real)
        noise = normal(batch.keys, "r1", tuple(real.shape[1:])).to(real.dtype)
        with torch.autocast(real.device.type, enabled=False):
            return adversarial.r1_finite_difference(critic.eager, real, noise, SIGMA)

    # -- measuring and showing --------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        real = load_image(batch, self.dtype)
        made = nets["vae"](real)
        picture = made.images.clamp(0, 1)
        mean = real.mean((2, 3), keepdim=True).expand_as(real)
        return {
            "psnr": Rows(psnr(picture, real)),
            "ssim": Rows(ssim(picture, real)),
            "l1": Rows((picture - real).abs().flatten(1).mean(1)),
            "sharpness": Rows(steepness(picture) / steepness(real).clamp_min(1e-6)),
            "psnr_mean_colour": Rows(psnr(mean, real)),
            "psnr_shrink_enlarge": Rows(
                psnr(shrink_and_enlarge(real, self.recipe.model.factor), real)
            ),
            "ids": Rows(made.ids),
        }

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        ids = rows["ids"]
        size = codebook_size(self.parts["vae"].network)
        counts = torch.bincount(ids.flatten(), minlength=size).double()
        shares = counts / counts.sum()
        means = {name: v.double().mean().item() for name, v in rows.items() if name != "ids"}
        return means | {
            "codebook_use": (counts > 0).double().mean().item(),
            "perplexity": torch.exp(-torch.special.xlogy(shares, shares).sum()).item(),
            "tokens_per_code": ids.numel() / size,
        }

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        real = load_image(batch, self.dtype)
        made = nets["vae"](real).images.clamp(0, 1)
        return [ReconstructionSheet("reconstructions", real[:8], made[:8])]


def channels_last(network: nn.Module) -> nn.Module:
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def codebook_size(network: nn.Module) -> int:
    assert isinstance(network, VQGanVAE)
    return network.codebook_size


def steepness(images: Tensor) -> Tensor:
    """(b,): mean absolute step between neighbouring pixels; a blurred picture has less of it."""
    across, down = images.diff(dim=-1).abs(), images.diff(dim=-2).abs()
    return across.flatten(1).mean(1) + down.flatten(1).mean(1)


def shrink_and_enlarge(images: Tensor, factor: int) -> Tensor:
    """The baseline that spends as many pixels as the tokenizer spends ids."""
    size = tuple(images.shape[-2:])
    small = [side // factor for side in size]
    options: dict[str, Any] = {"mode": "bicubic", "antialias": True, "align_corners": False}
    return F.interpolate(F.interpolate(images, small, **options), size, **options).clamp(0, 1)


def enlarged(image: np.ndarray, side: int = 128) -> np.ndarray:
    """Small pictures at a whole multiple of their size, for the eye."""
    factor = max(1, round(side / max(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def to_bytes(image: Tensor) -> np.ndarray:
    """(3, h, w) in 0..1 to (h, w, 3) bytes."""
    return (image.float() * 255).round().byte().permute(1, 2, 0).cpu().numpy()


@dataclass
class ReconstructionSheet:
    """Original, reconstruction and their difference, a row for each picture."""

    name: str
    real: Tensor
    made: Tensor

    def write(self, folder: Path) -> list[Path]:
        triples = [
            (real, made, (real - made).abs().clamp(0, 1))
            for real, made in zip(self.real, self.made)
        ]
        rows = [[enlarged(to_bytes(image)) for image in triple] for triple in triples]
        path = folder / f"{self.name}.png"
        write_png(path, grid(rows, ["original", "reconstruction", "difference"]))
        return [path]

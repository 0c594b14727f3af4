"""Training of an image or video tokenizer with discriminators, which start late.

real ─ tokenizer ─> reconstruction ─ l1, l2, perceptual ──────────────────────┐
                        │                                                     ├─> tokenizer update
                        ├─ discriminators, frozen ─ adversarial loss x weight ┘
                        └─ detached ─> discriminator ─ hinge + penalty ─> discriminator update
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.config import OptimizerConfig
from quintet.engine.health import PlateauMonitor, below
from quintet.engine.keys import normal
from quintet.engine.task import Batch, Loss, Monitor, Part, StepContext, Task, Update, each
from quintet.engine.when import When
from quintet.nn.adversarial import losses as adversarial
from quintet.nn.adversarial.balancer import Balancer
from quintet.nn.kernels import FORMATS
from quintet.nn.lpips import LPIPS
from quintet.nn.perceptual import StructuralDistance
from quintet.nn.quantisers.config import COLLAPSED
from quintet.nn.similarity import psnr
from quintet.shared.tokenizer.config import TokenizerRecipe
from quintet.shared.tokenizer.model import TokenizerModel
from quintet.shared.tokenizer.pixels import three_channels


class TokenizerTask(Task):
    """A room implements `measure` and `exhibit`, and may override `real` and `perceptual_images`.
    `sets` are data sets of the user's, by split; without them, the room opens `recipe.data`."""

    best = ("psnr", "max")
    capturable = True
    recipe: Any
    field: str
    """The name of the samples in a batch."""
    room: Any
    """Module with `open_data` and `collate`."""
    settings: str
    """Name of the data settings in the recipe."""

    def __init__(
        self,
        recipe: TokenizerRecipe,
        tokenizer: TokenizerModel,
        discriminators: Mapping[str, nn.Module],
        sets: Mapping[str, Any] | None = None,
    ):
        self.losses, self.sets, self.tokenizer = recipe.losses, sets, tokenizer
        self.dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        self.balancer = Balancer(
            share=self.losses.adversarial_share, cap=self.losses.adversarial_cap
        )
        # With fused norms, captured steps are faster than compiled ones and ready in a fraction of
        # the time (docs/performance.md).
        network = channels_last(tokenizer)
        self.parts = {
            self.main: Part(
                network, recipe.optim, compiles_captured=False, extra_state=self.balancer
            )
        }
        self.trained = When(start=recipe.tokenizer_start)
        self.updates = [Update(self.main, each(self.tokenizer_loss), self.trained)]
        if self.losses.perceptual:
            vgg = self.losses.vgg
            distance = LPIPS(vgg) if vgg else StructuralDistance()
            self.parts["perceptual"] = Part(distance, compiles_captured=False)
        self.discriminators = list(discriminators) if self.losses.adversarial != "none" else []
        start = recipe.adversarial_start
        self.discriminated = When(start=start) if self.discriminators else When(every=0)
        self.adversarial = replace(self.discriminated, start=max(start, recipe.tokenizer_start))
        self.penalty = When(every=self.losses.penalty_every, start=start).inside(self.discriminated)
        for name in self.discriminators:
            self._add_discriminator(name, discriminators[name], recipe.discriminator_optim)
        self.monitors = self._monitors(recipe)

    def _add_discriminator(
        self, name: str, discriminator: nn.Module, optimizer: OptimizerConfig
    ) -> None:
        lecam = adversarial.LeCam() if self.losses.penalty == "lecam" else None
        # It would be compiled twice, live and frozen, and was no faster for it (docs/dev/log.md).
        part = Part(channels_last(discriminator), optimizer, compiles=False, extra_state=lecam)
        self.parts[name] = part
        self.updates.append(
            Update(name, each(partial(self.discriminator_loss, name)), self.discriminated)
        )

    def _monitors(self, recipe: TokenizerRecipe) -> list[Monitor]:
        constant = "the output is constant; check the originals, or lower the learning rate"
        begun = recipe.optim.warmup_steps
        monitors: list[Monitor] = [
            below(f"{self.main}/output_std", 1e-3, constant, 5, after=begun),
        ]
        if self.tokenizer.quantiser.discrete:
            collapsed = COLLAPSED[self.tokenizer.config.quantiser]
            monitors.append(below("val/codebook_coverage", 0.05, collapsed, 2, after=begun))
        begun = recipe.adversarial_start + recipe.discriminator_optim.warmup_steps
        for name in self.discriminators:
            won = f"the {name} has won; lower its learning rate"
            chance = f"the {name} is at chance; raise its learning rate"
            monitors.append(PlateauMonitor(f"{name}/loss", won, -1.0, 0.01, 20, begun))
            monitors.append(PlateauMonitor(f"{name}/logit_gap", chance, -1e-3, 1e-3, 40, begun))
        return monitors

    # -- batches ----------------------------------------------------------------------------

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        settings = getattr(self.recipe, self.settings)
        return self.room.open_data(self.recipe.data, settings, split, self.recipe.seed)

    def collate(self, items: list[Any]) -> Any:
        return self.room.collate(items)

    def real(self, batch: Batch) -> Tensor:
        """The samples in 0..1; transferred as uint8, a quarter of the size."""
        values = batch.data[self.field]
        return values.to(self.dtype) / 255 if values.dtype == torch.uint8 else values

    def perceptual_images(self, values: Tensor, batch: Batch) -> Tensor:
        """The images (n, c, h, w) that the perceptual distance compares."""
        return values

    def check(self, data: Any) -> None:
        values = data[self.field]
        if values.dtype == torch.uint8:
            return
        low, high = values.min().item(), values.max().item()
        if low < -1e-3 or high > 1 + 1e-3:
            raise ValueError(
                f"{self.field} values range from {low:.3g} to {high:.3g}, but the model takes 0 to "
                "1; divide by 255, or pass uint8 tensors, which are scaled automatically"
            )

    # -- updates ----------------------------------------------------------------------------

    def tokenizer_loss(self, nets: Mapping[str, Any], batch: Batch, context: StepContext) -> Loss:
        real = self.real(batch)
        output = nets[self.main](real, self._noise(real, batch))
        reconstruction, quantiser_loss = output.output, output.quantiser_loss
        context.scratch.setdefault("pairs", []).append((real, reconstruction.detach()))
        adversarial_loss, weight = None, None
        if context.due(self.adversarial):
            ramp = context.step_scalar("adversarial_ramp", self._ramp)
            reconstruction, fake = self.balancer.split(reconstruction, ramp)
            losses = [self._generator_loss(nets[n], real, fake) for n in self.discriminators]
            adversarial_loss = torch.stack(losses).mean()
            weight = self.balancer.effective_weight(ramp)
        loss, metrics = self._reconstruction_loss(nets, batch, real, reconstruction)
        loss = loss + quantiser_loss
        metrics["quantiser"] = quantiser_loss
        if output.kl is not None:
            metrics["kl"] = output.kl.mean()
        if len(reconstruction) > 1:  # undefined for a single sample
            metrics["output_std"] = reconstruction.detach().std(0).mean()
        if adversarial_loss is not None and weight is not None:
            loss = loss + weight * adversarial_loss
            metrics |= {"adversarial": adversarial_loss, "adversarial_weight": weight}
        return loss, {"loss": loss, **metrics}

    def _noise(self, real: Tensor, batch: Batch) -> Tensor | None:
        """Noise of a continuous bottleneck, by the keys of the samples."""
        shape = self.tokenizer.noise_shape(real)
        return None if shape is None else normal(batch.keys, "latents", shape).to(real.dtype)

    def _ramp(self, step: int) -> float:
        return min(1.0, (step - self.adversarial.start + 1) / self.losses.adversarial_warmup_steps)

    def _reconstruction_loss(
        self, nets: Mapping[str, Any], batch: Batch, real: Tensor, reconstruction: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, terms = self.tokenizer.pixel_loss(reconstruction, real, self.losses)
        metrics = {**terms, "psnr": psnr(reconstruction.detach(), real).mean()}
        if self.losses.perceptual:
            fake_images, real_images = (
                three_channels(self.perceptual_images(values, batch))
                for values in (reconstruction, real)
            )
            perceptual = nets["perceptual"](fake_images, real_images).mean()
            loss = loss + self.losses.perceptual * perceptual
            metrics["perceptual"] = perceptual
        return loss, metrics

    def _generator_loss(self, discriminator: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
        if self.losses.adversarial == "hinge":
            return adversarial.hinge_generator(discriminator(fake)).mean()
        real_logits, fake_logits = discriminator(torch.cat([real, fake])).chunk(2)
        return adversarial.relativistic_generator(real_logits, fake_logits).mean()

    def discriminator_loss(
        self, name: str, nets: Mapping[str, Any], batch: Batch, context: StepContext
    ) -> Loss:
        if name == self.discriminators[0] and not context.due(self.trained):
            self._untrained_pair(name, nets, batch, context)
        pairs = context.scratch.setdefault(name, list(context.scratch["pairs"]))
        real, fake = pairs.pop(0)
        real_logits, fake_logits = nets[name](torch.cat([real, fake])).chunk(2)
        if self.losses.adversarial == "hinge":
            loss = adversarial.hinge_discriminator(real_logits, fake_logits).mean()
        else:
            loss = adversarial.relativistic_discriminator(real_logits, fake_logits).mean()
        logit_gap = real_logits.detach().float().mean() - fake_logits.detach().float().mean()
        metrics = {"loss": loss, "logit_gap": logit_gap}
        if context.due(self.penalty) and self.losses.penalty != "none":
            penalty = self._penalty(name, nets[name], batch, real, real_logits, fake_logits).mean()
            loss = loss + self.losses.penalty_weight * self.losses.penalty_every * penalty
            metrics["penalty"] = penalty
        return loss, metrics

    def _untrained_pair(
        self, name: str, nets: Mapping[str, Any], batch: Batch, context: StepContext
    ) -> None:
        """What `tokenizer_loss` leaves for the discriminators, before its first step."""
        real = self.real(batch)
        with torch.no_grad():
            pair = real, nets[self.main](real, self._noise(real, batch)).output
        for consumer in ("pairs", name):
            context.scratch.setdefault(consumer, []).append(pair)

    def _penalty(
        self,
        name: str,
        discriminator: Any,
        batch: Batch,
        real: Tensor,
        real_logits: Tensor,
        fake_logits: Tensor,
    ) -> Tensor:
        """One value per sample. R1 is computed with the eager discriminator: double backward cannot
        be compiled, and a derivative along a direction would have to be compiled as well."""
        if self.losses.penalty == "lecam":
            lecam = self.parts[name].extra_state
            assert lecam is not None
            return lecam(real_logits, fake_logits)
        if self.losses.penalty == "r1":
            return adversarial.r1_exact(discriminator.eager, real)
        noise = normal(batch.keys, "r1", tuple(real.shape[1:])).to(real.dtype)
        noise = noise.contiguous(memory_format=FORMATS[noise.ndim])
        return adversarial.r1_tangent(discriminator.eager, real, noise)

    # -- evaluation -------------------------------------------------------------------------

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """Means, and what the bottleneck makes of its rows."""
        others = dict(rows)
        of_codes = self.tokenizer.quantiser.summarise(others)
        return super().summarise(others) | of_codes


def channels_last(network: nn.Module) -> nn.Module:
    """Converted in place; `Module.to` cannot convert both 2-D and 3-D convolutions."""
    for parameter in network.parameters():
        if parameter.ndim in FORMATS:
            parameter.data = parameter.data.contiguous(memory_format=FORMATS[parameter.ndim])
    return network

"""The task of a tokenizer and its critics, which start late; pictures and clips alike.

what is real ─ tokenizer ─> reconstruction ─ l1, l2, perceptual ──────────┐
                                │                                         ├─> its update
                                ├─ critics, frozen ─ adversarial x balance┘
                                └─ detached, kept ─> a critic ─ hinge + penalty ─> its update
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.config import OptimiserConfig
from quintet.engine.health import Monitor, Resting, below
from quintet.engine.keys import normal
from quintet.engine.task import At, Batch, Loss, Part, Task, Update, each
from quintet.engine.when import When
from quintet.nn import adversarial
from quintet.nn.balancer import Balancer
from quintet.nn.codebook import codebook_use
from quintet.nn.perceptual import StructuralDistance
from quintet.nn.similarity import psnr
from quintet.nn.vgg import VGGDistance
from quintet.shared.tokenizer_config import TokenizerRecipe

SIGMA = 0.01
"""Of the noise that the finite difference of R1 is taken with."""


class TokenizerTask(Task):
    """A room says how a batch becomes `real`, which pictures the perceptual distance compares,
    and what is measured and shown. `sets` are data sets of the user's, by split."""

    best = ("psnr", "max")
    field: str
    """What the samples of a batch are called."""

    def __init__(
        self,
        recipe: TokenizerRecipe,
        tokenizer: nn.Module,
        optimiser: OptimiserConfig,
        critics: Mapping[str, tuple[nn.Module, OptimiserConfig]],
        sets: Mapping[str, Any] | None = None,
    ):
        self.losses, self.sets = recipe.losses, sets
        self.dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        self.balancer = Balancer(
            share=self.losses.adversarial_share, cap=self.losses.adversarial_cap
        )
        self.parts = {self.main: Part(channels_last(tokenizer), optimiser, aside=self.balancer)}
        self.updates = [Update(self.main, each(self.tokenizer_loss))]
        if self.losses.perceptual:
            vgg = self.losses.vgg
            self.parts["distance"] = Part(VGGDistance(vgg) if vgg else StructuralDistance())
        self.critics = list(critics) if self.losses.adversarial != "none" else []
        # Critics' updates and the tokenizer's adversarial term share one When.
        start = recipe.adversarial_start
        self.adversarial = When(start=start) if self.critics else When(every=0)
        self.penalty = When(every=self.losses.penalty_every, start=start).inside(self.adversarial)
        for name in self.critics:
            self._add_critic(name, *critics[name])
        self.monitors = self._monitors()

    def _add_critic(self, name: str, critic: nn.Module, optimiser: OptimiserConfig) -> None:
        lecam = adversarial.LeCam() if self.losses.penalty == "lecam" else None
        # Live and frozen it would be compiled twice, and was no faster for it (docs/log.md).
        part = Part(channels_last(critic), optimiser, compiles=False, aside=lecam)
        self.parts[name] = part
        self.updates.append(Update(name, each(partial(self.critic_loss, name)), self.adversarial))

    def _monitors(self) -> list[Monitor]:
        collapsed = "the codes have collapsed; try fsq, or a lower rate"
        found: list[Monitor] = [
            below("val/codebook_use", 0.05, collapsed, 2),
            below(f"{self.main}/spread", 1e-3, "the output is constant", 5),
        ]
        for name in self.critics:
            won, chance = f"the {name} has won; lower its", f"the {name} is at chance; raise its"
            found.append(Resting(f"{name}/loss", f"{won} rate", -1.0, 0.01, patience=20))
            found.append(Resting(f"{name}/gap", f"{chance} rate", -1e-3, 1e-3, 40))
        return found

    # -- what a room says -------------------------------------------------------------------

    def real(self, batch: Batch) -> Tensor:
        """The samples in 0..1; they travel as bytes, a quarter of the way to the device."""
        values = batch.data[self.field]
        return values.to(self.dtype) / 255 if values.dtype == torch.uint8 else values

    def pictures(self, values: Tensor, batch: Batch) -> Tensor:
        """Those (n, 3, h, w) of them that the perceptual distance compares."""
        return values

    def check(self, data: Any) -> None:
        values = data[self.field]
        if values.dtype == torch.uint8:
            return
        low, high = values.min().item(), values.max().item()
        if low < -1e-3 or high > 1 + 1e-3:
            raise ValueError(
                f"{self.field} values reach from {low:.3g} to {high:.3g}, but the model takes 0 to "
                "1; divide by 255, or give uint8 tensors, which are divided for you"
            )

    # -- the updates ------------------------------------------------------------------------

    def tokenizer_loss(self, nets: Mapping[str, Any], batch: Batch, at: At) -> Loss:
        real = self.real(batch)
        made, ids, quantiser_loss = nets[self.main](real)
        del ids
        at.scratch.setdefault("pairs", []).append((real, made.detach()))
        picture, term, weight = made, None, None
        if self.adversarial.due(at.step):
            ramp = min(1.0, (at.step - self.adversarial.start + 1) / self.losses.adversarial_ramp)
            picture, judged = self.balancer.split(made, ramp)
            terms = [self._fool(nets[name], real, judged) for name in self.critics]
            term, weight = torch.stack(terms).mean(), self.balancer.applied(ramp)
        loss, metrics = self._reconstruction(nets, batch, real, picture)
        loss = loss + quantiser_loss
        metrics["quantiser"] = quantiser_loss
        if len(picture) > 1:  # a single sample is never seen to differ
            metrics["spread"] = picture.detach().std(0).mean()
        if term is not None and weight is not None:
            loss = loss + weight * term
            metrics |= {"adversarial": term, "adversarial_weight": weight}
        return loss, {"loss": loss, **metrics}

    def _reconstruction(
        self, nets: Mapping[str, Any], batch: Batch, real: Tensor, picture: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        error = picture - real
        l1, l2 = error.abs().mean(), error.square().mean()
        loss = self.losses.l1 * l1 + self.losses.l2 * l2
        metrics = {"l1": l1, "psnr": psnr(picture.detach(), real).mean()}
        if self.losses.perceptual:
            seen, wanted = (self.pictures(values, batch) for values in (picture, real))
            distance = nets["distance"](seen, wanted).mean()
            loss = loss + self.losses.perceptual * distance
            metrics["perceptual"] = distance
        return loss, metrics

    def _fool(self, critic: nn.Module, real: Tensor, judged: Tensor) -> Tensor:
        if self.losses.adversarial == "hinge":
            return adversarial.hinge_generator(critic(judged)).mean()
        on_real, on_fake = critic(torch.cat([real, judged])).chunk(2)
        return adversarial.relativistic_generator(on_real, on_fake).mean()

    def critic_loss(self, name: str, nets: Mapping[str, Any], batch: Batch, at: At) -> Loss:
        waiting = at.scratch.setdefault(name, list(at.scratch["pairs"]))
        real, made = waiting.pop(0)
        on_real, on_fake = nets[name](torch.cat([real, made])).chunk(2)
        if self.losses.adversarial == "hinge":
            loss = adversarial.hinge_discriminator(on_real, on_fake).mean()
        else:
            loss = adversarial.relativistic_discriminator(on_real, on_fake).mean()
        gap = on_real.detach().float().mean() - on_fake.detach().float().mean()
        metrics = {"loss": loss, "gap": gap}
        if self.penalty.due(at.step) and self.losses.penalty != "none":
            penalty = self._penalty(name, nets[name], batch, real, on_real, on_fake).mean()
            loss = loss + self.losses.penalty_weight * self.losses.penalty_every * penalty
            metrics["penalty"] = penalty
        return loss, metrics

    def _penalty(
        self, name: str, critic: Any, batch: Batch, real: Tensor, on_real: Tensor, on_fake: Tensor
    ) -> Tensor:
        """One value per sample. R1 runs on the eager critic in fp32: a double backward cannot be
        compiled, and a small difference would drown in bf16."""
        if self.losses.penalty == "lecam":
            lecam = self.parts[name].aside
            assert lecam is not None
            return lecam(on_real, on_fake)
        if self.losses.penalty == "r1":
            return adversarial.r1_exact(critic.eager, real)
        noise = normal(batch.keys, "r1", tuple(real.shape[1:])).to(real.dtype)
        with torch.autocast(real.device.type, enabled=False):
            return adversarial.r1_finite_difference(critic.eager, real, noise, SIGMA)

    # -- measuring --------------------------------------------------------------------------

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """Means, and how much of the codebook the `ids` use."""
        ids, size = rows["ids"], int(self.parts[self.main].network.codebook_size)  # type: ignore[arg-type]
        used = codebook_use(ids, size)
        means = {name: v.double().mean().item() for name, v in rows.items() if name != "ids"}
        return means | {
            "codebook_use": used.share.item(),
            "perplexity": used.perplexity.item(),
            "tokens_per_code": ids.numel() / size,
        }


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def channels_last(network: nn.Module) -> nn.Module:
    """In place. `Module.to` cannot do it for a network of 2-D and 3-D convolutions."""
    for parameter in network.parameters():
        if parameter.ndim in FORMATS:
            parameter.data = parameter.data.contiguous(memory_format=FORMATS[parameter.ndim])
    return network

"""Training of a codec with the two discriminators of sounds. Channels are compared and
judged one by one.

real ─ codec ─> copy ─ error of log-mels and samples, loss of the codebooks ──────────────┐
                 ├─ discriminators, frozen ─ adversarial, feature matching ─ balancer ───┴─> codec
                 └─ detached ─> discriminator ─ hinge ─> its own update
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.health import PlateauMonitor, below
from quintet.engine.keys import normal
from quintet.engine.task import (
    Batch,
    Exhibit,
    Loss,
    Measured,
    Monitor,
    Part,
    Rows,
    StepContext,
    Task,
    Update,
    each,
)
from quintet.engine.when import When
from quintet.music import excerpts
from quintet.music.config import CodingRecipe
from quintet.nn.adversarial.balancer import Balancer
from quintet.nn.adversarial.sounds import (
    deception,
    discrimination,
    period_discriminator,
    resolution_discriminator,
)
from quintet.nn.spectral_errors import (
    copy_errors,
    log_mels,
    mel_errors,
    si_sdr,
    stft_errors,
)
from quintet.shared import segments
from quintet.shared.exhibits import Sounds
from quintet.shared.tokenizer.task import channels_last

RESOLUTION_WEIGHT = 0.1
"""Weight of the resolution discriminator, relative to the period discriminator."""
SHOWN = 3
"""Recordings in the exhibits of an evaluation."""
PERIODS, WINDOWS = "period_discriminator", "resolution_discriminator"


def segments_of(recipe: CodingRecipe, model: Any) -> segments.Segments:
    """Segments of training and validation, in whole frames of a codec."""
    train, valid = (_length(recipe, model, name) for name in ("seconds", "valid_seconds"))
    return segments.Segments(train, valid, model.sample_rate, model.channels)


def _length(recipe: CodingRecipe, model: Any, name: str) -> int:
    seconds, hop, chunk = getattr(recipe.sounds, name), model.hop, model.chunk
    length = round(seconds * model.sample_rate / hop) * hop
    least = max(recipe.discriminators.windows)
    if chunk is not None and length > chunk:
        raise RunError(
            f"this {model.config.class_name} encodes {chunk / model.sample_rate:g} s at once; set"
            f" --sounds.{name.replace('_', '-')} to that or less"
        )
    if length < least:
        raise RunError(
            f"{seconds:g} s are shorter than a window of {least} samples; raise"
            f" --sounds.{name.replace('_', '-')}"
        )
    return length


class CodingTask(Task):
    """`model` is a tokenizer of sounds with `sample_rate`, `channels`, `hop` and `chunk`; `sets`
    are data sets of the user's, by split."""

    main = "codec"
    best = ("mel_error", "min")

    def __init__(self, recipe: CodingRecipe, model: Any, sets: Any = None) -> None:
        self.recipe, self.model = recipe, model
        self.sets: dict[str, Any] = {} if sets is None else sets
        self.segments = segments_of(recipe, model)
        scales = log_mels(model.sample_rate)
        self.mel: Any = scales.scales[-1]
        losses = recipe.losses
        self.balancer = Balancer(share=losses.adversarial_share, cap=losses.adversarial_cap)
        self.parts = {
            self.main: Part(self.model, recipe.optim, extra_state=self.balancer),
            "log_mels": Part(scales, compiles=False),
        }
        self.trained = When(start=recipe.codec_start)
        self.updates = [Update(self.main, each(self.codec_loss), self.trained)]
        uses, start = losses.adversarial != "none", recipe.adversarial_start
        self.adversarial = When(start=max(start, recipe.codec_start)) if uses else When(every=0)
        self.weights = {PERIODS: 1.0, WINDOWS: RESOLUTION_WEIGHT} if uses else {}
        config = recipe.discriminators
        networks = {
            PERIODS: period_discriminator(config.periods, config.period_dim),
            WINDOWS: resolution_discriminator(config.windows, config.window_dim),
        }
        for name in self.weights:
            network = channels_last(networks[name])
            self.parts[name] = Part(network, recipe.discriminator_optim, compiles=False)
            loss = each(partial(self.discriminator_loss, name))
            self.updates.append(Update(name, loss, When(start=start)))
        self.monitors = self._monitors()

    def _monitors(self) -> list[Monitor]:
        begun = self.recipe.codec_start + self.recipe.optim.warmup_steps
        silent = "copies are silent; check the originals, or lower the learning rate"
        monitors: list[Monitor] = [below(f"{self.main}/loudness", 0.01, silent, 5, after=begun)]
        begun = self.recipe.adversarial_start + self.recipe.discriminator_optim.warmup_steps
        for name in self.weights:
            won = f"the {name} has won; lower its learning rate"
            chance = f"the {name} is at chance; raise its learning rate"
            monitors.append(PlateauMonitor(f"{name}/loss", won, -1.0, 0.01, 20, begun))
            monitors.append(PlateauMonitor(f"{name}/logit_gap", chance, -1e-3, 1e-3, 40, begun))
        return monitors

    # -- data -----------------------------------------------------------------------------------

    def data(self, split: str) -> Any:
        if split not in self.sets:
            self.sets[split] = excerpts.open_data(self.recipe, split, self.segments)  # type: ignore[arg-type]
        return self.sets[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        return segments.collate(items, self.segments)

    def real(self, batch: Batch) -> Tensor:
        """(b, c, n)."""
        sounds = batch.data["audio"]
        return sounds[:, None] if sounds.ndim == 2 else sounds.mT.contiguous()

    # -- updates --------------------------------------------------------------------------------

    def codec_loss(self, nets: Mapping[str, Any], batch: Batch, context: StepContext) -> Loss:
        real = self.real(batch)
        copy = nets[self.main](real, self._noise(real, batch))
        real, fake = real.flatten(0, 1), copy.output.flatten(0, 1)
        context.scratch.setdefault("pairs", []).append((real, fake.detach()))
        deceived: dict[str, Tensor] = {}
        loudness = _rms(fake.detach()) / _rms(real).clamp_min(1e-8)
        if context.due(self.adversarial):
            fake, judged = self.balancer.split(fake)
            deceived = self._deception(nets, real, judged)
        mel, waveform = copy_errors(nets["log_mels"], real, fake)
        loss = mel + self.recipe.losses.waveform * waveform + copy.quantiser_loss
        metrics = {"mel": mel, "waveform": waveform, "quantiser": copy.quantiser_loss}
        metrics |= {"loudness": loudness, **deceived}
        if copy.kl is not None:
            metrics["kl"] = copy.kl.mean()
        if deceived:
            weight = self.balancer.effective_weight()
            loss = loss + weight * deceived["adversarial"]
            metrics["adversarial_weight"] = weight
        return loss, {"loss": loss, **metrics}

    def _deception(self, nets: Mapping[str, Any], real: Tensor, fake: Tensor) -> dict[str, Tensor]:
        """`adversarial`, the loss by all discriminators, and its terms."""
        terms: dict[str, Tensor] = {}
        losses: list[Tensor] = []
        for name, weight in self.weights.items():
            adversarial, matching = deception(nets[name], real, fake)
            losses.append(weight * (adversarial + matching))
            kind = name.partition("_")[0]
            terms |= {f"{kind}_adversarial": adversarial, f"{kind}_matching": matching}
        return {"adversarial": torch.stack(losses).sum(), **terms}

    def _noise(self, real: Tensor, batch: Batch) -> Tensor | None:
        """For Gaussian latents, by the keys of the samples."""
        shape = self.model.noise_shape(real)
        return None if shape is None else normal(batch.keys, "latents", shape).to(real.dtype)

    def discriminator_loss(
        self, name: str, nets: Mapping[str, Any], batch: Batch, context: StepContext
    ) -> Loss:
        if name == PERIODS and not context.due(self.trained):
            self._untrained_pair(nets, batch, context)
        pairs = context.scratch.setdefault(name, list(context.scratch["pairs"]))
        real, fake = pairs.pop(0)
        loss, logit_gap = discrimination(nets[name], real, fake)
        return loss, {"loss": loss, "logit_gap": logit_gap}

    def _untrained_pair(self, nets: Mapping[str, Any], batch: Batch, context: StepContext) -> None:
        """What `codec_loss` leaves for the discriminators, before its first step."""
        real = self.real(batch)
        with torch.no_grad():
            fake = nets[self.main](real, self._noise(real, batch)).output
        for consumer in ("pairs", PERIODS):
            pair = (real.flatten(0, 1), fake.flatten(0, 1))
            context.scratch.setdefault(consumer, []).append(pair)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        real = self.real(batch)
        copy = nets[self.main](real)
        rows = self.errors(real, copy.output, batch) | self.model.quantiser.rows(copy)
        return {name: Rows(value) for name, value in rows.items()}

    def errors(self, real: Tensor, fake: Tensor, batch: Batch) -> dict[str, Tensor]:
        """(b,) each, the mean over channels."""
        count, channels = real.shape[:2]
        lengths = batch.data["lengths"].repeat_interleave(channels)
        sounds = real.flatten(0, 1), fake.flatten(0, 1), lengths
        values = {
            "mel_error": mel_errors(*sounds, self.mel),
            "stft_error": stft_errors(*sounds),
            "si_sdr": si_sdr(*sounds),
        }
        return {name: value.view(count, -1).mean(1) for name, value in values.items()}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        others = dict(rows)
        of_codes = self.model.quantiser.summarise(others)
        return super().summarise(others) | of_codes

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        real = self.real(batch)[:SHOWN]
        kinds = {"original": real, "copy": nets[self.main](real).output}
        exhibits: list[Exhibit] = []
        for row, length in enumerate(batch.data["lengths"][:SHOWN].tolist()):
            sounds = {name: each[row, :, :length].mean(0) for name, each in kinds.items()}
            pictures = [self.mel(sound[None])[0] for sound in sounds.values()]
            exhibits.append(Sounds(f"music-{row}", sounds, pictures, self.segments.rate, ""))
        return exhibits


def _rms(sounds: Tensor) -> Tensor:
    return sounds.square().mean().sqrt()

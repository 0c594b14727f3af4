"""Training task of a masked generator, with a single update.

cached ids ─ some masked ─ transformer ─> cross-entropy of those
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import uniform
from quintet.engine.task import Batch, Loss, Measured, Rows, StepContext, Tally
from quintet.shared.generation.generator import sample_keys
from quintet.shared.generation.task import GeneratorTask
from quintet.shared.maskgit.data import IdData
from quintet.shared.maskgit.decoding import Decoding
from quintet.shared.maskgit.generator import MaskedGenerator
from quintet.shared.maskgit.model import random_mask


class MaskedTask(GeneratorTask):
    Codes = IdData
    model: MaskedGenerator
    prefix = 0.0

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Cross-entropy averaged over all masked ids of the step, of all processes."""
        masks = [random_mask(b.keys, self.config.grid, self.prefix) for b in batches]
        local = sum((mask.sum() for mask in masks), torch.zeros((), device=self.device))
        total = context.sum(local)
        for batch, masked in zip(batches, masks):
            drop = uniform(batch.keys, "text", ()) < self.recipe.text_drop
            losses = self._call(nets["transformer"], batch, masked, drop)
            loss, share = losses.loss_sum.sum() / total, len(batch.ids) / context.samples
            # Reports weight metrics by the share of samples; undo this for a loss per id.
            correct = losses.correct.sum() / losses.masked.sum()
            yield loss, {"loss": loss.detach() / share, "accuracy": correct}

    def _call(self, transformer: Any, batch: Batch, masked: Tensor, drop: Tensor) -> Any:
        text, mask = (batch.data.get(name) for name in ("text", "mask"))
        return transformer(batch.data["codes"].long(), masked, text, mask, drop)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        keys = sample_keys(0, batch.ids, self.model.key_name).to(
            self.device
        )  # the same ids are masked every time
        masked = random_mask(keys, self.config.grid, self.prefix)
        drop = torch.ones(len(batch.ids), dtype=torch.bool, device=self.device)
        losses = self._call(nets["transformer"], batch, masked, ~drop)
        without_text = self._call(nets["transformer"], batch, masked, drop)
        count = losses.masked.sum()
        metrics: dict[str, Tally | Rows] = {
            "loss": Tally(losses.loss_sum.sum(), count),
            "loss_without_text": Tally(without_text.loss_sum.sum(), count),
            "accuracy": Tally(losses.correct.sum(), count),
        }
        return metrics | self.measure_generation(batch)

    def generate(self, captions: Sequence[str], numbers: Sequence[int], seed: int = 0) -> Tensor:
        """Samples by the recipe's `generation`; functions of caption, number and seed."""
        settings, model = self.generation, self.model
        context = self.context(captions)
        scale = 1.0 if self.config.text == "none" else settings.cond_scale
        decoding = Decoding(
            steps=settings.sampling_steps,
            order=settings.order,
            temperature=settings.temperature,
            choice_temperature=settings.choice_temperature,
            cond_scale=scale,
        )
        blank = model.blank_ids(len(captions))
        return self.decode(
            model.complete(blank, sample_keys(seed, numbers, model.key_name), context, decoding)
        )

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels in 0..1 of ids (b, n)."""
        return self.model.decode_ids(codes.long().to(self.device)).float()

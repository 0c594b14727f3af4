"""Contrastive training of two towers: one update, and a loss over the global batch.

micro-batches ─ towers ─> embeddings ─ gathered over micro-batches and processes ─> loss
                             its gradient at the embeddings ─> surrogate loss of each micro-batch
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.health import PlateauMonitor
from quintet.engine.task import Batch, Loss, StepContext, Task, World
from quintet.nn.contrastive import (
    Pairs,
    chance_loss,
    contrastive_loss,
    global_loss,
    retrieval_ranks,
)

COLLAPSED = (
    "the embeddings have collapsed: all samples are equally similar to all captions; "
    "lower the learning rate, warm up longer, or check that captions match them"
)


class Embedded(NamedTuple):
    """Embeddings of a batch and the learned scalars of the loss, as towers return them."""

    media: Tensor
    """(b, l), of unit length, in full precision."""
    text: Tensor
    """(b, l)."""
    log_temperature: Tensor
    """0-dim."""

    @property
    def pairs(self) -> Pairs:
        return Pairs(self.media, self.text, self.log_temperature)


class ContrastiveTask(Task):
    """Its main part is the model, whose output has `pairs`."""

    best = ("recall_at_10", "max")
    medium: ClassVar[str]
    """What texts are paired with."""
    recipe: Any
    config: Any
    """`loss` is its kind."""

    def inputs(self, batch: Batch, augment: bool = False) -> tuple[Any, ...]:
        """Arguments of the model."""
        raise NotImplementedError

    def watch(self, world: World) -> None:
        """Set up the collapse monitor."""
        recipe = self.recipe
        count = recipe.global_batch(world.size)
        if count < 2:
            raise RunError(
                "a contrastive loss needs two or more pairs in a global batch; raise --batch-size"
            )
        loss, warm = chance_loss(self.config.loss, count), recipe.optim.warmup_steps
        name, near = f"{self.main}/loss", (loss - 0.02, loss + 0.02)
        self.monitors = [PlateauMonitor(name, COLLAPSED, *near, 10, warm)]

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Gradient caching: embed all micro-batches without gradients, then each again with them.
        A single micro-batch keeps its graph and is computed once."""
        network, inputs = nets[self.main], [self.inputs(batch, augment=True) for batch in batches]
        with torch.set_grad_enabled(len(batches) == 1):
            first = [network(*each) for each in inputs]
        pairs = [output.pairs for output in first]
        total = global_loss(self.config.loss, pairs, context.gather, context.world.rank)
        for index, each in enumerate(inputs):
            output = first[0] if len(inputs) == 1 else network(*each)
            metrics = {
                "loss": total.loss,
                "accuracy": total.accuracy,
                "temperature": output.log_temperature.detach().exp(),
            }
            yield total.surrogate(index, output.pairs), metrics | self.reported(output)

    def reported(self, output: Any) -> dict[str, Tensor]:
        """Further metrics of a micro-batch."""
        return {}

    def compared(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """Loss and recalls of all held-out pairs."""
        media, text = rows[self.medium], rows["text"]
        scalars = [rows[name][0] for name in ("log_temperature", "bias") if name in rows]
        metrics: dict[str, float] = {}
        if self.config.loss != "decoupled" or len(media) > 1:
            pairs = Pairs(media, text, *scalars)
            metrics["loss"] = contrastive_loss(self.config.loss, pairs).item()
        return metrics | retrieval(media, text, rows["caption"], self.medium)


def retrieval(
    media: Tensor, text: Tensor, captions: Tensor, medium: str = "audio"
) -> dict[str, float]:
    """Recalls in both directions and their mean, and median ranks (1 is best)."""
    ranks = {
        "text": retrieval_ranks(media, text, captions),
        medium: retrieval_ranks(text, media, captions),
    }
    metrics: dict[str, float] = {}
    for k in (1, 5, 10):
        recall = {name: (rank < k).double().mean().item() for name, rank in ranks.items()}
        metrics |= {f"recall_at_{k}_of_{name}": value for name, value in recall.items()}
        metrics[f"recall_at_{k}"] = sum(recall.values()) / 2
    for name, rank in ranks.items():
        metrics[f"median_rank_of_{name}"] = rank.double().median().item() + 1
    return metrics

"""A toy GAN small enough to hold in the head: every engine claim is proven on it.

The generator maps points to points, the discriminator judges them. Both have dropout, the
discriminator starts late, and samples are jittered by their key.
"""

import hashlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.config import OptimizerConfig, Recipe
from quintet.engine.data.plans import LengthPlan
from quintet.engine.task import Batch, Measured, Part, Rows, StepContext, Task, Update, each
from quintet.engine.when import When


@dataclass(frozen=True, kw_only=True)
class ToyRecipe(Recipe):
    """The toy's settings."""

    size: int = 200
    dropout: float = 0.1
    discriminator_start: int = 0
    width: int = 16
    depth: int = 0
    statistics: bool = False
    nan_at: int = -1
    nan_rank: int = -1
    nan_from: int = 10**9
    signal_at: int = -1
    slow_step: float = 0.0
    scale: float = 1.0
    generator: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(
            learning_rate=1e-2, warmup_steps=4, weight_decay=0.01
        )
    )
    discriminator_optim: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=5e-3, warmup_steps=4, ema_decay=0.0)
    )


class Points:
    """Sample i is a point on a circle; jitter comes from its key alone."""

    def __init__(self, size: int, jitter: float = 0.05, scale: float = 1.0):
        self.size, self.jitter, self.scale = size, jitter, scale

    def __len__(self) -> int:
        return self.size

    def keyed(self, index: int, key: Any) -> dict[str, Tensor]:
        angle = torch.tensor(index * 0.37)
        point = torch.stack([angle.cos(), angle.sin()])
        if key is not None:
            point = (
                point + self.jitter * torch.from_numpy(key.numpy("jitter").normal(size=2)).float()
            )
        return {"point": self.scale * point.float()}


class Net(nn.Module):
    def __init__(
        self, out: int, width: int, dropout: float, statistics: bool = False, depth: int = 0
    ):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.hidden = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(width, out)
        self.statistics = statistics
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("pending", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.statistics and self.training:
            self.pending += torch.cat([x.detach().sum(0), x.new_tensor([len(x)])])
        return self.last(self.dropout(torch.tanh(self.norm(self.hidden(self.first(x))))))

    def commit(self, context: StepContext) -> None:
        if self.statistics:
            total = context.sum(self.pending)
            keep = 0.9 + 0.1 * context.skipped
            self.mean.lerp_(total[:2] / total[2], 1 - keep)
            self.pending.zero_()


class ToyTask(Task):
    main = "generator"
    best = ("error", "min")

    def __init__(self, recipe: ToyRecipe):
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        self.parts = {
            "generator": Part(
                Net(2, recipe.width, recipe.dropout, recipe.statistics, recipe.depth),
                recipe.generator,
            ),
            "discriminator": Part(Net(1, recipe.width, recipe.dropout), recipe.discriminator_optim),
        }
        self.adversarial = When(start=recipe.discriminator_start)
        self.updates = [
            Update("generator", each(self.generator_loss)),
            Update("discriminator", each(self.discriminator_loss), self.adversarial),
        ]

    def data(self, split: str) -> Points:
        return Points(self.recipe.size if split == "train" else 37, scale=self.recipe.scale)

    def collate(self, items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {"point": torch.stack([item["point"] for item in items])}

    def check(self, data: Any) -> None:
        if data["point"].abs().max() > 10:
            raise ValueError("points must be near the unit circle; divide them by their radius")

    def generator_loss(
        self, nets: Any, batch: Batch, context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        point = batch.data["point"]
        made = nets["generator"](point)
        context.scratch.setdefault("made", []).append(made.detach())
        error = (made - point).square().sum(1).mean()
        loss = error
        if self.adversarial.due(context.step):
            loss = loss - 0.1 * nets["discriminator"](made).mean()
        here = self.recipe.nan_rank in (-1, context.world.rank)
        if context.step == self.recipe.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self.recipe.slow_step)
        if (context.step == self.recipe.nan_at and here) or context.step >= self.recipe.nan_from:
            loss = loss * float("nan")
        return loss, {"loss": loss, "error": error}

    def discriminator_loss(
        self, nets: Any, batch: Batch, context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        made = context.scratch["made"].pop(0)
        logits = nets["discriminator"](torch.cat([batch.data["point"], made]))
        real, fake = logits.chunk(2)
        loss = torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()
        return loss, {"loss": loss}

    def measure(self, nets: Any, batch: Batch) -> Measured:
        made = nets["generator"](batch.data["point"])
        return {"error": Rows((made - batch.data["point"]).square().sum(1))}


class WitnessTask(ToyTask):
    """Leaves a digest of what this very process holds, at every measurement."""

    def summarise(self, rows: Any) -> dict[str, float]:
        held = {
            f"{name}.{key}": hashlib.sha256(value.numpy().tobytes()).hexdigest()
            for name, part in self.parts.items()
            for key, value in part.network.state_dict().items()
        }
        path = f"{os.environ['TOY_FOLDER']}.rank{os.environ.get('RANK', 0)}.json"
        with open(path, "w") as file:
            json.dump(held, file)
        return super().summarise(rows)


class LengthTask(ToyTask):
    """The same, in batches by a budget of length."""

    def plan(self, source: Any) -> LengthPlan:
        lengths = [1 + i % 7 for i in range(len(source))]
        return LengthPlan(lengths, self.recipe.seed, budget=40)

"""Monitors: they watch the reports and name the cause when learning has gone wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from quintet.engine.sharding import local

if TYPE_CHECKING:
    from quintet.engine.part import LivePart
    from quintet.engine.run import Run


class Monitor(Protocol):
    def __call__(self, report: Mapping[str, float]) -> str | None:
        """A sentence naming the cause, or None; called with every report and evaluation."""
        ...


@dataclass
class Resting:
    """Fires when a metric stays inside a band for `patience` reports in a row."""

    metric: str
    cause: str
    low: float = float("-inf")
    high: float = float("inf")
    patience: int = 5
    _seen: int = field(default=0, init=False)

    def __call__(self, report: Mapping[str, float]) -> str | None:
        if self.metric not in report:
            return None
        value = report[self.metric]
        self._seen = self._seen + 1 if self.low <= value <= self.high else 0
        if self._seen and self._seen == self.patience:
            return (
                f"{self.metric} has rested at {value:.4g} for {self.patience} reports: {self.cause}"
            )
        return None


def below(metric: str, limit: float, cause: str, patience: int = 5) -> Resting:
    return Resting(metric, cause, high=limit, patience=patience)


def above(metric: str, limit: float, cause: str, patience: int = 5) -> Resting:
    return Resting(metric, cause, low=limit, patience=patience)


def common(parts: list[str]) -> list[Monitor]:
    """Monitors that every run has."""
    found: list[Monitor] = [
        above(
            "waiting",
            0.5,
            "the device waits for data more than half of the time; raise --workers",
            patience=10,
        )
    ]
    for part in parts:
        found.append(
            above(f"{part}/update_ratio", 0.1, "each step rewrites the weights; lower the rate", 2)
        )
        found.append(
            below(f"{part}/update_ratio", 1e-9, "the weights hardly move; raise the rate", 2)
        )
    return found


def spoilt(batches: Sequence[Any]) -> Tensor | float:
    """NaN where the data holds one, else 0, for the guard to find in the loss: rounded to a bin or
    cut to a range it would pass for a number. Infinities are left alone; masks are made of them."""
    found = [tensor.isnan().any() for batch in batches for tensor in _fractions(batch.data)]
    return torch.where(torch.stack(found).any(), math.nan, 0.0) if found else 0.0


def _fractions(data: Any) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data] if data.is_floating_point() else []
    items: Any = data.values() if isinstance(data, Mapping) else data
    nested = isinstance(data, (Mapping, list, tuple))
    return [tensor for item in items for tensor in _fractions(item)] if nested else []


def not_finite(record: Mapping[str, Any]) -> list[str]:
    """A sentence for each measure of an evaluation that is no number."""
    bad = [n for n, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
    return [f"health: {name} is not finite: look at the held-out samples" for name in bad]


def weights_are_bad(run: "Run") -> bool:
    """Whether a part's weights or averages are not finite, on any process. There is nothing to
    measure then, and drawing samples from them could fail in many ways."""
    parts = list(run.parts.values())
    flags = torch.stack([_is_bad(part) for part in parts]).float()
    counts = run.world.sum(flags).tolist()
    bad = [f"'{part.name}'" for part, count in zip(parts, counts) if count > 0]
    if bad:
        run.say(f"health: {', '.join(bad)} has weights that are not finite; nothing is evaluated")
    return bool(bad)


def _is_bad(part: "LivePart") -> Tensor:
    held = [*part.module.state_dict().values(), *(part.average.values if part.average else [])]
    sound = [local(tensor).isfinite().all() for tensor in held if tensor.is_floating_point()]
    return ~torch.stack(sound).all()

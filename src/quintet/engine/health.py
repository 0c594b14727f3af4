"""Monitors: they watch the reports and name the cause when learning has gone wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


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

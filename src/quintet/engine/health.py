"""Health monitors: they read every report and name the cause when training goes wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quintet.engine.data.wire import tensors_in
from quintet.engine.task import Monitor
from quintet.engine.tools.doctor import usable_cores


@dataclass
class PlateauMonitor:
    """Fires when a metric stays in [low, high] for `patience` reports in a row. Reports up to step
    `after` do not count: a network in its warm-up says nothing about the rest of the run."""

    metric: str
    cause: str
    low: float = float("-inf")
    high: float = float("inf")
    patience: int = 5
    after: int = 0
    _streak: int = field(default=0, init=False)

    def __call__(self, report: Mapping[str, float]) -> str | None:
        if self.metric not in report or report.get("step", math.inf) <= self.after:
            return None
        value = report[self.metric]
        self._streak = self._streak + 1 if self.low <= value <= self.high else 0
        if self._streak and self._streak == self.patience:
            return (
                f"{self.metric} has stayed at {value:.4g} for {self.patience} reports: {self.cause}"
            )
        return None


def below(
    metric: str, limit: float, cause: str, patience: int = 5, after: int = 0
) -> PlateauMonitor:
    return PlateauMonitor(metric, cause, high=limit, patience=patience, after=after)


def above(metric: str, limit: float, cause: str, patience: int = 5) -> PlateauMonitor:
    return PlateauMonitor(metric, cause, low=limit, patience=patience)


def default_monitors(parts: list[str], workers: int = 0) -> list[Monitor]:
    """Monitors of every run with so many workers per process."""
    busy = workers >= usable_cores()
    remedy = "all cores load data already, use smaller files" if busy else "raise --workers"
    slow = f"the device waits for data more than half of the time; {remedy}"
    large = "each step rewrites the weights; lower the learning rate"
    small = "the weights hardly move; raise the learning rate"
    monitors: list[Monitor] = [above("waiting", 0.5, slow, patience=10)]
    for metric in (f"{part}/update_ratio" for part in parts):
        monitors += [above(metric, 0.1, large, patience=2), below(metric, 1e-9, small, patience=2)]
    return monitors


def below_baselines(metrics: Mapping[str, float], best: tuple[str, str] | None) -> str | None:
    """A sentence if the metric that picks the best checkpoint is no better than baselines, which
    have its name and more: psnr_bicubic of psnr."""
    name, direction = best or ("", "")
    sign = 1 if direction == "max" else -1
    others = [other for other in metrics if name in metrics and other.startswith(f"{name}_")]
    better = [other for other in others if sign * (metrics[other] - metrics[name]) >= 0]
    if not better:
        return None
    listed = " and ".join(f"{other} {metrics[other]:.4g}" for other in better)
    return (
        f"the run ends with {name} {metrics[name]:.4g}, no better than {listed}: resume with more "
        "steps, try another learning rate, or look at the exhibits and the data"
    )


def nan_in_data(batches: Sequence[Any]) -> Tensor | float:
    """NaN if the data contains NaN, else 0, to be added to the loss for the guard to find: after
    quantisation or clamping a NaN would pass for a number. Infinities are allowed (masks)."""
    tensors = (tensor for batch in batches for tensor in tensors_in(batch.data))
    flags = [tensor.isnan().any() for tensor in tensors if tensor.is_floating_point()]
    return torch.where(torch.stack(flags).any(), math.nan, 0.0) if flags else 0.0

"""Metric accumulation on the device, with one transfer to the host per report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.engine.keys import fold
from quintet.engine.machine.world import World


@dataclass
class Entry:
    step: int
    name: str
    value: Tensor
    weight: float


def stacked(entries: Sequence[Entry]) -> Tensor:
    """Their values in fp64, whichever type each has."""
    return torch.stack([entry.value.to(torch.float64).reshape(()) for entry in entries])


class Meters:
    """One scalar per metric, step and micro-batch, reduced over processes once per report."""

    def __init__(self, world: World):
        self.world = world
        self.entries: list[Entry] = []
        self.ids: dict[int, list[int]] = {}
        self.clock = time.perf_counter()
        self.samples = 0

    def begin(self, step: int, ids: list[int]) -> None:
        self.ids[step] = ids
        self.samples += len(ids)

    def add(self, step: int, part: str, metrics: Mapping[str, Tensor], weight: float = 1.0) -> None:
        for name, value in metrics.items():
            self.entries.append(Entry(step, f"{part}/{name}", value.detach().clone(), weight))

    def read(self) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
        """Mean of each metric over the steps since the last call, and its value at every step."""
        table = self._table()
        self.entries.clear()
        values: dict[str, list[float]] = {}
        for row in table.values():
            for name, value in row.items():
                values.setdefault(name, []).append(value)
        return {name: sum(rows) / len(rows) for name, rows in values.items()}, table

    def _table(self) -> dict[int, dict[str, float]]:
        if not self.entries:
            return {}
        weights = torch.tensor([e.weight for e in self.entries], dtype=torch.float64)
        values = stacked(self.entries)
        weighted = values * weights.to(values.device, non_blocking=True)
        table: dict[int, dict[str, float]] = {}
        for entry, value in zip(self.entries, self.world.sum(weighted).tolist()):
            row = table.setdefault(entry.step, {})
            row[entry.name] = row.get(entry.name, 0.0) + value
        return table

    def timing(self, waited: float) -> dict[str, float]:
        """Throughput, and the share of the seconds waited for data, since the last call."""
        now = time.perf_counter()
        seconds = max(now - self.clock, 1e-9)
        rates = {"samples_per_second": self.samples / seconds, "waiting": waited / seconds}
        self.clock, self.samples = now, 0
        return rates


class Stopwatch:
    """Seconds of a run over all of its starts."""

    def __init__(self) -> None:
        self.before, self.began = 0.0, time.monotonic()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.began

    def restart(self, seconds: float) -> None:
        self.before, self.began = seconds, time.monotonic()


def order_of(ids: Mapping[int, Sequence[int]]) -> str:
    """Range of steps, counted from 1, and digest of the samples of these steps."""
    if not ids:
        return ""
    digest = fold(*(index for step in ids.values() for index in step))
    return f"{min(ids) + 1}-{max(ids) + 1}:{digest:016x}"

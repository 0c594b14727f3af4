"""A long run of tiny steps, with evaluations and checkpoints: nothing may grow.

    python benchmarks/soak.py                   200,000 steps
    python benchmarks/soak.py --steps 20000     a short form

Samples memory, open files, disk without the logs and time per step while it trains, compares the
second quarter of the run with the last, and fails where one of them has grown.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import quintet

GROWTH = {"memory_mb": 1.05, "files": 1.0, "disk_kb": 1.05, "ms_per_step": 1.25}
"""Allowed ratio of the last quarter to the second; time is of a shared machine."""
PASSING = 2.5
"""Files that may be open for a moment: a batch that arrives, a checkpoint that is written. One that
stays open after each evaluation makes more."""


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.line(x) - y).square().mean()


class Pairs:
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.full((4,), index / 512)
        return x, 2 * x - 1


class Sample(NamedTuple):
    step: int
    memory_mb: float
    files: int
    disk_kb: float
    ms_per_step: float


def resident_mb() -> float:
    """Of this process now; where the system does not say, the most so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def disk_kb(run: Path) -> float:
    """Without metrics.jsonl and the tracker's events, which hold a line per report."""
    sizes = 0
    for path in run.rglob("*"):
        try:
            if path.is_file() and path.suffix != ".jsonl" and "tensorboard" not in path.parts:
                sizes += path.stat().st_size
        except OSError:
            continue  # a checkpoint that was retired meanwhile
    return sizes / 1e3


def soak(steps: int, run: Path, samples: int = 80) -> list[Sample]:
    """Train, and look at the process now and then."""
    taken: list[Sample] = []
    last = [0, time.perf_counter()]

    def look(record: dict[str, Any]) -> None:
        step, now = record["step"], time.perf_counter()
        if "model/loss" not in record or step - last[0] < steps // samples:
            return
        each = (now - last[1]) / (step - last[0]) * 1e3
        taken.append(Sample(step, resident_mb(), open_files(), disk_kb(run), each))
        last[:] = [step, time.perf_counter()]

    quintet.Trainer(
        Line(),
        Pairs(),
        run=run,
        steps=steps,
        batch_size=4,
        workers=1,
        device="cpu",
        log_every=max(1, min(100, steps // 80)),
        evaluate_every=max(25, steps // 100),
        save_every=max(25, steps // 200),
        trackers=("tensorboard",),
        log_fn=look,
        progress=False,
    ).train()
    return taken


def grown(taken: list[Sample]) -> list[str]:
    """A sentence for each quantity that is larger in the last quarter than in the second."""
    quarter = len(taken) // 4
    early, late = taken[quarter : 2 * quarter], taken[-quarter:]
    found = []
    for name, allowed in GROWTH.items():
        before, after = (median(getattr(s, name) for s in part) for part in (early, late))
        print(f"{name:12} {before:10.3f} -> {after:10.3f}")
        if after > before * allowed + (PASSING if name == "files" else 0):
            found.append(f"{name} grew from {before:.3f} to {after:.3f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=200_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        taken = soak(asked.steps, Path(folder) / "run")
        print(f"{asked.steps} steps in {time.perf_counter() - begun:.0f} s, {len(taken)} samples")
        found = grown(taken)
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()

"""Steps per second, and CPU seconds per step, of a run under Ray against torchrun on this machine.

    python benchmarks/ray_runs.py [--rounds 8] [--steps 60] [--workers 2]

Runs alternate in changing order: one under Ray and two under torchrun, which shows the noise. What
counts is the time between the first report of a run and its last, without its start and end; CPU
seconds are those of the workers and of all of Ray's processes, or of torchrun. Each round gives a
ratio; the last line has their quartiles. On a machine that does other work, look at the CPU.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import quintet.ray

RECIPE = "image/vqgan_tiny"
WARM = 10
"""Steps before the first time that counts."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    few: dict[str, Any] = {"steps": options.steps, "log_every": WARM, "batch_size": 4}
    few |= {"save_every": 0, "evaluate_every": 0, "device": "cpu", "precision": "fp32"}

    def ray(run: Path) -> None:
        alone = {**few, "workers": options.workers, "readers": 0, "trackers": ()}
        quintet.ray.train(RECIPE, run=run, settings={"images.valid_limit": 4}, **alone)

    def torchrun(run: Path) -> None:
        flags = [word for n, v in few.items() for word in (f"--{n.replace('_', '-')}", str(v))]
        start = ["torch.distributed.run", "--nproc-per-node", str(options.workers), "-m", "quintet"]
        words = ["train", RECIPE, "--run", str(run), *flags, "--workers", "0", "--trackers"]
        words += ["--images.valid-limit", "4"]
        command = [sys.executable, "-m", *start, "--", *words]
        subprocess.run(command, check=True, capture_output=True)

    kinds: dict[str, Callable[[Path], None]] = {"ray": ray, "torchrun": torchrun, "again": torchrun}
    ratios: dict[str, list[float]] = {"ray": [], "again": [], "cpu ray": [], "cpu again": []}
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.rounds):
            rates: dict[str, tuple[float, float]] = {}
            names = [*kinds]
            for name in [*names[number % 3 :], *names[: number % 3]]:
                rates[name] = measured(kinds[name], Path(place) / f"{name}-{number}", options.steps)
            pairs = zip(("", "cpu "), *(rates[name] for name in kinds))
            for prefix, ours, theirs, again in pairs:
                ratios[f"{prefix}ray"].append(2 * ours / (theirs + again))
                ratios[f"{prefix}again"].append(again / theirs)
            print(json.dumps(rates), flush=True)
    sums = {n: [round(q, 4) for q in statistics.quantiles(v, n=4)] for n, v in ratios.items()}
    print(json.dumps({**vars(options), "to torchrun": sums}))


def measured(start: Callable[[Path], None], run: Path, steps: int) -> tuple[float, float]:
    """Steps per second, and CPU seconds per step."""
    marks: list[tuple[float, float]] = []

    def watch() -> None:
        for step in (WARM, steps):
            while not any(f'"step": {step},' in line for line in reports(run)):
                time.sleep(0.02)
            marks.append((time.monotonic(), spent(run)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start(run)
    watcher.join(10)
    (begun, before), (ended, after) = marks
    return (steps - WARM) / (ended - begun), (after - before) / (steps - WARM)


def reports(run: Path) -> list[str]:
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def spent(run: Path) -> float:
    """CPU seconds so far of the processes that a run consists of."""
    total = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            of_ray = words and ("ray::" in words[0] or "/ray/" in words[0])
            if (of_ray and run.name.startswith("ray")) or str(run) in words:
                times = process.cpu_times()
                total += times.user + times.system
    return total


if __name__ == "__main__":
    main()

"""CPU seconds per step of a run under Ray against one under torchrun, on this machine.

    python benchmarks/ray_runs.py [--minutes 3] [--workers 2] [--rounds 2]

Two runs train side by side, so that other work on the machine disturbs both: one under Ray and one
under torchrun, then two under torchrun, which shows the noise. Each window of some seconds gives
ratios; the last line has their quartiles: of the CPU seconds per step of the workers, of all
processes of Ray or torchrun, and of the steps. Steps compare only where nothing else runs, with a
core for each worker: Linux shares busy cores by sessions, of which Ray has more. `ray_turns.py`
compares steps per second.
"""

import argparse
import contextlib
import itertools
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
from quintet.ray.cluster import connected

RECIPE = "image/vqgan_tiny"
WINDOW = 15.0
"""Seconds between two looks."""
EVERY = 5
"""Steps between two reports."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    few: dict[str, Any] = {"batch_size": 4, "device": "cpu", "precision": "fp32"}
    few |= {"steps": 10**6, "minutes": options.minutes, "log_every": EVERY, "evaluate_every": 0}

    def ray(run: Path) -> None:
        more: dict[str, Any] = {"workers": options.workers, "readers": 0, "trackers": ()}
        quintet.ray.train(RECIPE, run=run, **few, **more)

    def torchrun(run: Path) -> None:
        flags = [word for n, v in few.items() for word in (f"--{n.replace('_', '-')}", str(v))]
        start = ["torch.distributed.run", "--nproc-per-node", str(options.workers), "-m", "quintet"]
        words = ["train", RECIPE, "--run", str(run), *flags, "--workers", "0", "--trackers"]
        command = [sys.executable, "-m", *start, "--", *words]
        command[3:3] = ["--standalone"]
        subprocess.run(command, check=True, capture_output=True)

    connected()  # here, as its processes end with the thread that starts them
    kinds = {"ray": ray, "torchrun": torchrun}
    found: dict[str, list[list[float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.rounds):
            for name, start in kinds.items():
                pair = [Path(place) / f"{name}-{number}", Path(place) / f"other-{name}-{number}"]
                found[name] += side_by_side([start, torchrun], pair)
                print(json.dumps({name: found[name]}), flush=True)
    names = ("cpu of workers", "cpu of all", "steps")
    for name, rows in found.items():
        quarters = {n: statistics.quantiles(v, n=4) for n, v in zip(names, zip(*rows))}
        print(json.dumps({name: quarters, "windows": len(rows), **vars(options)}))


def side_by_side(starts: list[Callable[[Path], None]], runs: list[Path]) -> list[list[float]]:
    """In each window, the ratios of CPU seconds per step and of steps."""
    threads = [threading.Thread(target=s, args=(run,)) for s, run in zip(starts, runs)]
    for thread in threads:
        thread.start()
    while min(map(step, runs)) < 4 * EVERY:
        time.sleep(0.1)
        assert all(thread.is_alive() for thread in threads)
    looks = [[look(run) for run in runs]]
    while all((run / "metrics.jsonl").stat().st_mtime > time.time() - WINDOW for run in runs):
        time.sleep(WINDOW)
        looks.append([look(run) for run in runs])
    for thread in threads:
        thread.join()
    rows: list[list[float]] = []
    for before, after in itertools.pairwise(looks[:-2]):  # one may have been at its end
        ours, theirs = ([b - a for a, b in zip(*pair)] for pair in zip(before, after))
        cpu = [(ours[n] / ours[0]) / (theirs[n] / theirs[0]) for n in (1, 2)]
        rows.append([*cpu, ours[0] / theirs[0]])
    return rows


def step(run: Path) -> float:
    """Steps until now, between two reports by the clock."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    if len(lines) < 2:
        return 0
    before, last = (json.loads(line) for line in lines[-2:])
    pace = (last["step"] - before["step"]) / (last["seconds"] - before["seconds"])
    return last["step"] + min(EVERY, pace * (time.time() - path.stat().st_mtime))


def look(run: Path) -> tuple[float, float, float]:
    """Steps, and CPU seconds so far of the workers, and of all processes that belong to them."""
    workers = everything = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline() or [""]
            of_ray = "ray::" in words[0] or "/ray/" in " ".join(words)
            if (of_ray and run.name.startswith("ray")) or str(run) in words:
                times = process.cpu_times()
                everything += times.user + times.system
                if "RayTrainWorker" in words[0] or not (of_ray or "torch.distributed.run" in words):
                    workers += times.user + times.system
    return step(run), workers, everything


if __name__ == "__main__":
    main()

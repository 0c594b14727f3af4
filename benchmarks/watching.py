"""What an open page of `quintet watch` costs the run that it shows.

    python benchmarks/watching.py [--rounds 6] [--seconds 20]

image/vqgan_tiny trains on one thread and reports at every second step; stretches without and with
a page that asks every two seconds, as its script does, alternate. Prints the median time of a step
in both, by the clock and of the CPU, which other programs disturb less, the share of a core that
the server takes, and the time in which a report finds no request.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.requests import take

EVERY = 2.0
QUINTET = [sys.executable, "-m", "quintet"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        train = [*QUINTET, "train", "image/vqgan_tiny", "--run", str(run), "--steps", "1000000"]
        train += ["--device", "cpu", "--workers", "0", "--log-every", "2", "--evaluate-every"]
        train += ["1000000", "--save-every", "1000000"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        trainer = subprocess.Popen(train, env=environment, stderr=subprocess.DEVNULL)
        watch = [*QUINTET, "watch", str(run.parent), "--port", "0", "--read-only"]
        watcher = subprocess.Popen(watch, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert watcher.stdout is not None
            address = watcher.stdout.readline().strip()
            while len(reports(run)) < 20:
                time.sleep(0.5)
            processes = (trainer.pid, watcher.pid)
            compare(run, address, processes, asked.rounds, asked.seconds)
        finally:
            trainer.kill()
            watcher.kill()
            trainer.wait()
            watcher.wait()


def compare(
    run: Path, address: str, processes: tuple[int, int], rounds: int, seconds: float
) -> None:
    steps: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    used = 0.0
    for _ in range(rounds):
        for watched in (False, True):
            first, before = len(reports(run)), [cpu_seconds(process) for process in processes]
            page(address, seconds) if watched else time.sleep(seconds)
            own, server = (cpu_seconds(p) - b for p, b in zip(processes, before))
            used += server if watched else 0.0
            costs[watched].append(own / 2 / max(1, len(reports(run)) - first))
            times = [report["seconds"] for report in reports(run)[first:]]
            steps[watched] += [(b - a) / 2 for a, b in pairwise(times)]
    alone, beside = (statistics.median(steps[watched]) for watched in (False, True))
    print(f"ms per step: {1000 * alone:.2f} alone, {1000 * beside:.2f} with a page open")
    print(f"change: {beside / alone - 1:+.2%} of {len(steps[True])} reports")
    alone, beside = (statistics.median(costs[watched]) for watched in (False, True))
    print(f"CPU ms per step: {1000 * alone:.2f} alone, {1000 * beside:.2f} with a page open")
    print(f"the server took {used / rounds / seconds:.2%} of a core")
    folder, begun = RunFolder(run), time.perf_counter()
    for _ in range(1000):
        take(folder)
    print(f"{1000 * (time.perf_counter() - begun):.1f} us to look for a request")


def page(address: str, seconds: float) -> None:
    """The questions of the page's script."""
    have: dict[str, Any] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        body = json.dumps({"runs": ["run"], **have}).encode()
        with urllib.request.urlopen(f"{address}news", body, timeout=60) as answer:
            news = json.load(answer)
        have = {"digests": news["digests"], "at": news["at"]}
        time.sleep(EVERY)


def reports(run: Path) -> list[dict[str, Any]]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [json.loads(line) for line in lines]


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

"""Steps per second of a run under Ray against one under torchrun, one process each.

    python benchmarks/ray_turns.py [--minutes 6] [--seconds 30] [--cores 10-15 --lanes 3]

Runs take turns on the cores of a lane, A B B A; two alike in a row show the noise. A turn trains
for `--seconds`. Its speed is read from metrics.jsonl of the run, whose clock starts with the loop:
from the first checkpoint to the last, so that starting is left out and saving is included. A lane
should have two cores: torch takes one thread, and the other core is for the rest of the run, Ray's
own processes included. The last line has the ratio; the exit status is 1 if its median is more than
`--bar` off 1. `ray_runs.py` compares CPU seconds.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pairs import conclude, cores_of, lanes_of, on_cores, spread, verdict

TURNS = (("torchrun", "ray", "ray", "torchrun"), ("ray", "torchrun", "torchrun", "ray"))
"""Of even lanes and of odd ones."""
STARTING = 240.0
"""Seconds that a turn may take more than its training."""
STARTS = {
    "torchrun": "torch.distributed.run --standalone --nproc-per-node 1 -m quintet -- train",
    "ray": "quintet.ray train",
}
OWN = {"torchrun": "--workers 0", "ray": "--workers 1 --readers 0 --no-gpu"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="image/vqgan_tiny")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--seconds", type=float, default=30, help="of training in a turn")
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0)))))
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--bar", type=float, default=0.03)
    options = parser.parse_args()
    lanes = lanes_of(cores_of(options.cores), options.lanes)
    with ThreadPoolExecutor(len(lanes)) as pool, tempfile.TemporaryDirectory() as place:
        places = [Path(place) / str(number) for number in range(len(lanes))]
        jobs = [pool.submit(taken, options, *lane) for lane in zip(range(99), lanes, places)]
        turns = [job.result() for job in jobs]
    row: dict[str, Any] = {"benchmark": "ray_turns", "what": "ray/torchrun, steps per second"}
    row["failures"] = sum(name == "failed" for lane in turns for name, _ in lane)
    row |= verdict([pairs for lane in turns for pairs in ratios(lane)], options.bar)
    row["control"] = spread([pairs for lane in turns for pairs in ratios(lane, same=True)])
    row["steps_per_second"] = spread([[pace for _, pace in lane if pace] for lane in turns])
    conclude({**row, **vars(options)})


def taken(
    options: argparse.Namespace, number: int, cores: list[int], place: Path
) -> list[tuple[str, float]]:
    """Turns with their steps per second, until there is no time for another one; at least
    four, so that each kind has been the earlier one."""
    until, longest = time.monotonic() + 60 * options.minutes, 0.0
    turns: list[tuple[str, float]] = []
    for name in itertools.cycle(TURNS[number % 2]):
        begun = time.monotonic()
        if len(turns) >= 4 and begun + longest > until:
            break
        try:
            turns.append((name, pace_of(options, name, cores, place / str(len(turns)))))
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"lane {number} ends early: {error}", file=sys.stderr, flush=True)
            turns.append(("failed", 0.0))
            break
        took = time.monotonic() - begun
        longest = max(longest, took)
        row = {"lane": number, "turn": name, "steps_per_second": turns[-1][1], "took": took}
        print(json.dumps(row), flush=True)
    return turns


class Failed(Exception):
    """A turn whose run did not train."""


def pace_of(options: argparse.Namespace, name: str, cores: list[int], place: Path) -> float:
    place.mkdir(parents=True)
    settings: dict[str, Any] = {"batch-size": options.batch_size, "device": "cpu", "steps": 10**6}
    settings |= {"precision": "fp32", "minutes": options.seconds / 60, "evaluate-every": 0}
    settings |= {"save-every": options.save_every, "log-every": min(10, options.save_every)}
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    start, own = STARTS[name].split(), OWN[name].split()
    asked = [options.recipe, "--run", str(place / "run"), *own, *words, "--trackers"]
    # A cluster of this turn alone, which starts no more processes than it needs.
    alone = {"RAY_ADDRESS": "local", "RAY_prestart_worker_first_driver": "0"}
    result = subprocess.run(
        on_cores(cores, [sys.executable, "-m", *start, *asked]),
        env={**os.environ, "OMP_NUM_THREADS": "1", **alone},
        capture_output=True,
        text=True,
        timeout=options.seconds + STARTING,
    )
    if result.returncode:
        raise Failed(f"{name} ended with status {result.returncode}: {result.stderr[-2000:]}")
    return pace(place / "run", options.save_every)


def pace(run: Path, every: int) -> float:
    """Steps per second from the first checkpoint to the last: by the run's own clock."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    times = {row["step"]: row["seconds"] for row in rows if "seconds" in row}
    saved = sorted(step for step in times if step % every == 0)
    if len(saved) < 2:
        raise Failed(f"{max(times)} steps are too few to save twice; take more --seconds")
    return (saved[-1] - saved[0]) / (times[saved[-1]] - times[saved[0]])


def ratios(turns: list[tuple[str, float]], same: bool = False) -> list[list[float]]:
    """Of neighbours: Ray to torchrun; `same`: the later of two alike to the earlier."""
    groups: list[list[float]] = []
    for (first, before), (second, after) in itertools.pairwise(turns):
        if "failed" in (first, second):
            break
        if same and first == second:
            groups.append([after / before])
        if not same and first != second:
            groups.append([after / before if second == "ray" else before / after])
    return groups


if __name__ == "__main__":
    main()

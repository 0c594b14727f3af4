"""Speed of a run whose folder is in S3, compared with one on disk.

    PYTHONPATH=tests python benchmarks/stored_runs.py [--minutes 3] [--cores 4-9 --lanes 2]

A segment is what a run does from one checkpoint to the next: it saves, then takes `--steps` steps
with their reports, while the checkpoint is written and uploaded. Four runs of one process take
turns, A B B A: two in S3 and two on disk, whose ratio is the noise. Starting, and waiting for the
last upload at the end of a run (`ending`, in seconds), are outside of the time. `cpu` has the CPU
seconds that a segment in S3 takes more, upload included. The server is moto's: it gets the last
core of a lane of several, and the run the others, on which torch takes one thread. The last line
has the ratio of the seconds; the exit status is 1 if its median is more than `--bar` off 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from pairs import conclude, cores_of, lanes_of, on_cores, spread, verdict

import storage
from quintet import rooms
from quintet.engine.config import to_json
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.remote.mirror import Mirror
from quintet.engine.runs.remote.uploader import Uploader
from quintet.engine.runs.sinks import Journal
from quintet.engine.settings import updated

TURNS = ("disk-0", "s3-0", "s3-1", "disk-1")
WARM_UP = 20
"""Steps before the first segment that counts."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="image/vqgan_tiny")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--steps", type=int, default=200, help="between two checkpoints")
    parser.add_argument("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0)))))
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--starts", type=int, default=1, help="processes in each lane, in turn")
    parser.add_argument("--bar", type=float, default=0.02)
    parser.add_argument("--rows", action="store_true", help="only the rows of one lane")
    options = parser.parse_args()
    cores = cores_of(options.cores)
    if options.rows:
        for row in rounds(options, cores):
            print(json.dumps(row), flush=True)
        return
    summarise(options, [row for start in range(options.starts) for row in side_by_side(options)])


def side_by_side(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """The rows of each lane, from a process of its own."""
    flags: dict[str, Any] = {"recipe": options.recipe, "batch-size": options.batch_size}
    flags |= {"steps": options.steps, "minutes": options.minutes / options.starts}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words.append("--rows")
    started = [
        subprocess.Popen(
            on_cores(
                cores, [sys.executable, __file__, *words, "--cores", ",".join(map(str, cores))]
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        for cores in lanes_of(cores_of(options.cores), options.lanes)
    ]
    for process in started:
        text = process.communicate()[0]
        print(text, end="", flush=True)
        if process.returncode:
            raise SystemExit(f"a lane ended with status {process.returncode}")
        yield [json.loads(line) for line in text.splitlines()]


def summarise(options: argparse.Namespace, lanes: list[list[dict[str, Any]]]) -> None:
    def each(name: str) -> list[list[float]]:
        return [[row[name] for row in rows] for rows in lanes]

    row = {"benchmark": "stored_runs", "what": "s3/disk, seconds of a segment"}
    row |= verdict(each("s3/disk"), options.bar)
    row |= {"control": spread(each("disk/disk")), "cpu": spread(each("cpu"))}
    row |= {"ending": spread(each("ending")), "seconds": spread(each("seconds"))}
    row["of_lanes"] = [round(statistics.median(values), 4) for values in each("s3/disk")]
    conclude({**row, **vars(options)})


def rounds(options: argparse.Namespace, cores: list[int]) -> Iterator[dict[str, float]]:
    """Rounds until the time is up, at least one; every other one is turned round."""
    until = time.monotonic() + 60 * options.minutes
    torch.set_num_threads(1)
    with ExitStack() as stack:
        os.sched_setaffinity(0, cores[-1:])  # the server keeps what it is started with
        address = stack.enter_context(storage.server())
        os.sched_setaffinity(0, cores[:-1] or cores)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ.update(storage.environment(address, place / "cache"))
        runs = {name: opened(options, name, place) for name in TURNS}
        for run in runs.values():
            segment(run, min(WARM_UP, options.steps))
        slowest, number = 0.0, 0
        while not number or time.monotonic() + slowest < until:
            begun = time.monotonic()
            yield compared(runs, TURNS[:: (1, -1)[number % 2]], options.steps)
            slowest, number = max(slowest, time.monotonic() - begun), number + 1
        for run in runs.values():
            run.close()


def opened(options: argparse.Namespace, name: str, place: Path) -> Run:
    path = Mirror.at(f"s3://bucket/{name}").path if name.startswith("s3") else place / name
    settings = {"batch_size": options.batch_size, "device": "cpu", "workers": 0, "compile": "off"}
    settings |= {"steps": 10**6, "precision": "fp32"}
    made = updated(rooms.recipe_function(options.recipe)(), settings)
    world, mirror = World(made), Mirror.of(path)
    world.use_precision(made.precision)
    uploader = Uploader(mirror, (made.keep_last, 0), False) if mirror else None
    folder = RunFolder.create(path, {"recipe": options.recipe, "settings": to_json(made)})
    folder.uploader = uploader
    return Run(rooms.build(made), made, world, folder, [Journal(folder)])


def compared(runs: dict[str, Run], turns: Iterable[str], steps: int) -> dict[str, float]:
    times: dict[str, dict[str, float]] = {name: segment(runs[name], steps) for name in turns}
    sums: dict[str, float] = defaultdict(float)
    for name, row in times.items():
        for what, value in row.items():
            sums[f"{name.partition('-')[0]} {what}"] += value / 2
    row = {
        "s3/disk": sums["s3 seconds"] / sums["disk seconds"],
        "disk/disk": times["disk-1"]["seconds"] / times["disk-0"]["seconds"],
        "cpu": sums["s3 cpu"] - sums["disk cpu"],
        "ending": sums["s3 ending"] - sums["disk ending"],
        "seconds": sums["disk seconds"],
    }
    return {name: round(value, 5) for name, value in row.items()}


def segment(run: Run, steps: int) -> dict[str, float]:
    """Wall seconds of the loop, and of what is left to do then; CPU seconds of everything."""
    begun, spent = time.perf_counter(), time.process_time()
    run.save()
    for _ in range(steps):
        take_step(run)
        if run.due(run.recipe.log_every):
            run.report()
    ended = time.perf_counter()
    run.saver.writer.wait()
    uploader = run.folder.uploader
    if uploader is not None:
        missing = uploader.finish()
        assert not missing, missing
        uploader._last = False  # its run goes on, so reports wait for each other again
    left, cpu = time.perf_counter() - ended, time.process_time() - spent
    return {"seconds": ended - begun, "ending": left, "cpu": cpu}


if __name__ == "__main__":
    main()

"""Speed of a run whose folder is in S3, compared with one on disk.

    PYTHONPATH=tests python benchmarks/stored_runs.py [--rounds 60] [--steps 15]

A segment saves a checkpoint and takes some steps, while the checkpoint is written and uploaded; the
end of the upload is awaited outside of the time. Segments of three runs alternate in changing
order: one in S3 and two on disk, which shows the noise. Each round gives a ratio; the last line has
their quartiles, and `cpu`, the CPU seconds that the process spends more on a segment in S3, upload
included. The server is moto's, on this machine: it takes time that a real one would not.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="image/vqgan_tiny")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    with storage.server() as address, tempfile.TemporaryDirectory() as place:
        os.environ.update(storage.environment(address, Path(place) / "cache"))
        runs = {
            "disk": opened(options.recipe, Path(place) / "disk"),
            "again": opened(options.recipe, Path(place) / "again"),
            "s3": opened(options.recipe, Mirror.at("s3://bucket/run").path),
        }
        compare(runs, options.rounds, options.steps)
        for run in runs.values():
            run.close()


def opened(recipe: str, path: Path) -> Run:
    settings = {"batch_size": 2, "device": "cpu", "workers": 0, "compile": "off", "steps": 10**6}
    made = updated(rooms.recipe_function(recipe)(), {**settings, "precision": "fp32"})
    world, mirror = World(made), Mirror.of(path)
    world.use_precision(made.precision)
    uploader = Uploader(mirror, (made.keep_last, 0), False) if mirror else None
    folder = RunFolder.create(path, {"recipe": recipe, "settings": to_json(made)})
    folder.uploader = uploader
    return Run(rooms.build(made), made, world, folder, [Journal(folder)])


def compare(runs: dict[str, Run], rounds: int, steps: int) -> None:
    ratios: dict[str, list[float]] = {"s3/disk": [], "disk/disk": []}
    cpu: list[float] = []
    names = [*runs]
    for number in range(rounds + 1):
        seconds, spent = dict[str, float](), dict[str, float]()
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            seconds[name], spent[name] = segment(runs[name], steps)
        if number:  # the first one warms up
            ratios["s3/disk"].append(2 * seconds["s3"] / (seconds["disk"] + seconds["again"]))
            cpu.append(spent["s3"] - (spent["disk"] + spent["again"]) / 2)
            ratios["disk/disk"].append(seconds["again"] / seconds["disk"])
            print(
                json.dumps({name: round(value, 3) for name, value in seconds.items()}), flush=True
            )
    sums = {name: spread(values) for name, values in {**ratios, "cpu": cpu}.items()}
    print(json.dumps({"rounds": rounds, "steps": steps, **sums}))


def segment(run: Run, steps: int) -> tuple[float, float]:
    """Wall seconds of the steps, and CPU seconds of everything."""
    begun, spent = time.perf_counter(), time.process_time()
    run.save()
    for _ in range(steps):
        take_step(run)
    run.report()
    ended = time.perf_counter()
    run.saver.writer.wait()
    if run.folder.uploader is not None:
        missing = run.folder.uploader.finish()
        assert not missing, missing
    return ended - begun, time.process_time() - spent


def spread(values: list[float]) -> list[float]:
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return [round(value, 4) for value in quarters]


if __name__ == "__main__":
    main()

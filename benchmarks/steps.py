"""Milliseconds of a training step of the recipes as people run them, discriminators on.

    python benchmarks/steps.py image/vqgan video/tokenizer --ways eager captured compiled

The batches are those of the recipe's built-in data, loaded once and kept on the device, so that the
step alone is measured. One JSON line for each recipe and way: ms a step, seconds from the recipe to
the tenth step (after imports), the share of the time in which the GPU is busy, kernels a step, GiB.
"""

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from goals import missed
from timing import busy

from quintet import rooms
from quintet.engine.config import Recipe
from quintet.engine.launch import start
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import each_setting

WAYS = {
    "eager": {"compile": "off", "capture": False},
    "captured": {"compile": "off", "capture": True},
    "compiled": {"compile": "on", "capture": False},
    "both": {"compile": "on", "capture": True},
    "default": {},
}
KEPT = 4
"""Batches in memory."""
BUILTIN = 4096


class Kept:
    """A stream of a few batches that stay on the device."""

    def __init__(self, run: Run, count: int):
        stream = run.stream
        self.batches, self.requests = [], []
        for _ in range(count):
            self.batches.append(stream.take(run.recipe.accumulate))
            self.requests.append(stream.step_requests)
        stream.close()
        self.samples, self.position, self.waited = stream.samples, 0, 0.0
        self.damaged: list[Any] = []
        self.replaced, self.shift, self.epoch = 0, 0, 0.0
        self.step_requests: list[Any] = []

    def take(self, count: int) -> Any:
        number = self.position % len(self.batches)
        self.position += 1
        self.step_requests = self.requests[number]
        return self.batches[number]

    def close(self) -> None:
        pass


def recipe_of(name: str, way: str, device: str, batch: int | None, place: Path) -> Recipe:
    recipe = rooms.recipe_function(name)()
    changes = {"adversarial_from": 0.0, "builtin_count": BUILTIN, "valid_limit": 8}
    recipe = each_setting(recipe, lambda f, value: changes.get(f.name, value))
    stages = {stage: str(stage_of(f"{kind}_tiny", place)) for stage, kind in recipe.stages.items()}
    size = {"batch_size": batch} if batch else {}
    return dataclasses.replace(
        recipe, device=device, workers=8, trackers=(), steps=10**6, **stages, **size, **WAYS[way]
    )


def stage_of(name: str, place: Path) -> Path:
    """A model that another one depends on, of the size of its tiny recipe and hardly trained."""
    run = place / name.replace("/", "-")
    if not run.exists():
        recipe = rooms.recipe_function(name)()
        recipe = each_setting(recipe, lambda f, value: {"valid_limit": 2}.get(f.name, value))
        recipe = dataclasses.replace(recipe, steps=2, workers=0, trackers=(), compile="off")
        build = lambda settings: rooms.build(settings)
        start(build, recipe, run, name=name, load=rooms.load, progress=False)
    return run


def measure(
    name: str, way: str, recipe: Recipe, place: Path, steps: int, longest: int
) -> dict[str, Any]:
    on_gpu = recipe.device == "cuda"
    sync = torch.cuda.synchronize if on_gpu else lambda: None
    begun = time.perf_counter()
    folder = RunFolder.create(place / f"{name.replace('/', '-')}-{way}", {"settings": {}})
    if recipe.stages:
        frozen.keep(folder, recipe, {}, rooms.load)
        recipe = frozen.resolved(recipe, folder.path)
    run = Run(rooms.build(recipe), recipe, World(recipe), folder)
    opened = time.perf_counter()
    run.stream = Kept(run, KEPT)  # type: ignore[assignment]
    loading = time.perf_counter() - opened
    firsts = []
    for _ in range(10):
        take_step(run)
        sync()
        firsts.append(round(time.perf_counter() - begun - loading, 1))
    for _ in range(4 * KEPT + 4):  # every kind of step has been captured
        take_step(run)
    run.meters.read()
    sync()
    begun = time.perf_counter()
    for _ in range(steps):
        take_step(run)
    sync()
    ms = (time.perf_counter() - begun) / steps * 1e3
    means = run.meters.read()[0]
    row = {
        "recipe": name,
        "way": way,
        "batch": recipe.batch_size,
        "ms": round(ms, 2),
        "seconds_to_tenth_step": firsts[-1],
        "seconds_to_steps": firsts,
        "loss": {n: round(v, 4) for n, v in means.items() if n.endswith("/loss")},
    }
    if on_gpu:
        row |= {"gib": round(torch.cuda.memory_reserved() / 2**30, 2), **busy(run, ms, longest)}
    if run.capture is not None:
        row |= {"graphs": sum(k.graph is not None for k in run.capture.kinds.values())}
        row |= {"refused": run.capture.refused} if run.capture.refused else {}
    run.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "captured"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--longest", type=int, default=0, help="kernels to list, longest first")
    asked = parser.parse_args()
    lacking = False
    with tempfile.TemporaryDirectory() as place:
        for name in asked.recipes:
            best: dict[str, Any] = {}
            for way in asked.ways:
                torch._dynamo.reset()
                folder = Path(place)
                recipe = recipe_of(name, way, asked.device, asked.batch_size, folder)
                try:
                    row = measure(name, way, recipe, folder, asked.steps, asked.longest)
                except Exception as error:
                    row = {"recipe": name, "way": way, "error": repr(error)[:600]}
                    import traceback

                    traceback.print_exc()
                print(json.dumps(row), flush=True)
                if asked.device == "cuda":
                    torch.cuda.empty_cache()
                best = min(best or row, row, key=lambda each: each.get("ms", math.inf))
            found = [] if asked.batch_size else missed(name, best)
            lacking = lacking or bool(found)
            print(json.dumps({"recipe": name, "missed": found}), flush=True)
    sys.exit(1 if lacking else 0)


if __name__ == "__main__":
    main()

"""How fast a recipe's data is made, by one core and by its workers, without training.

    python benchmarks/feeding.py music/mulan speech/voicebox image/vqgan pictures --workers 14

One core: processor time of one process per sample, collated in batches; with `--profile` the
functions that take it. Workers (0: not measured): samples per second that arrive on the device,
through the engine's own stream. `pictures` is `image/vqgan` on a folder of JPEGs of 640 x 480
pixels, smooth noise with grain, 90 kB each. One JSON line for each.
"""

import argparse
import cProfile
import json
import os
import pstats
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image

from quintet import rooms
from quintet.engine.building import stream
from quintet.engine.config import Recipe
from quintet.engine.machine.world import World
from quintet.engine.task import Task

WIDTH, HEIGHT = 640, 480


def write_pictures(folder: Path, count: int = 400) -> None:
    draw = np.random.default_rng(0)
    for number in range(count):
        coarse = draw.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        grainy = np.asarray(smooth) + draw.normal(0, 4, (HEIGHT, WIDTH, 3))
        picture = Image.fromarray(grainy.clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number:03d}.jpg", quality=90)


def one_core(task: Task, recipe: Recipe, world: World, count: int) -> dict[str, float]:
    """Milliseconds of processor time per sample."""
    alone = stream(task, replace(recipe, workers=0), world)
    alone.take(1)
    begun, first = time.process_time(), alone.position
    while alone.position - first < count:
        alone.take(1)
    ms = (time.process_time() - begun) / (alone.position - first) * 1e3
    return {"core_ms": round(ms, 3), "per_core": round(1e3 / ms)}


def by_workers(task: Task, recipe: Recipe, world: World, seconds: float) -> dict[str, float]:
    """Samples per second, and those of the last step's batch."""
    begun = time.perf_counter()
    loading = stream(task, recipe, world)
    planned = time.perf_counter() - begun
    try:
        for _ in range(2 * recipe.workers):  # caches of the workers are empty
            loading.take(1)
        ready = time.perf_counter() - begun
        begun, first = time.perf_counter(), loading.position
        while time.perf_counter() - begun < seconds:
            loading.take(1)
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        rate = (loading.position - first) / (time.perf_counter() - begun)
    finally:
        loading.close()
    return {
        "workers": recipe.workers,
        "samples_per_second": round(rate),
        "batch": len(loading.step_requests),
        "plan_s": round(planned, 2),
        "warm_s": round(ready, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", help="recipes, or pictures")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--count", type=int, default=256, help="samples of one core")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--profile", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    for name in flags.names:
        with tempfile.TemporaryDirectory() as folder:
            kind = "image/vqgan" if name == "pictures" else name
            recipe = rooms.recipe_function(kind)()
            recipe = replace(recipe, workers=flags.workers)
            if name == "pictures":
                write_pictures(Path(folder))
                recipe = replace(recipe, data=folder)
            task, world = rooms.build(recipe), World(recipe)
            profile = cProfile.Profile()
            if flags.profile:
                profile.enable()
            line = one_core(task, recipe, world, flags.count)
            if flags.profile:
                profile.disable()
                pstats.Stats(profile).sort_stats("tottime").print_stats(20)
            if flags.workers:
                line |= by_workers(task, recipe, world, flags.seconds)
            print(json.dumps({"data": name, **line}), flush=True)


if __name__ == "__main__":
    main()

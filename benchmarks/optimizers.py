"""Optimizers at equal time: what a recipe has learnt after so many seconds of steps.

    python benchmarks/optimizers.py music/mulan --seconds 60 --optimizers adamw muon
    python benchmarks/optimizers.py mesh/transformer --set autoencoder=RUN --learning-rates 3e-4

Each optimizer of the model (discriminators keep theirs) trains the recipe anew with the same seed
and the same data. A few timed steps say how many fit into the seconds, and the schedule of the
learning rate has that length. (Where discriminators start later, the steps take longer than that;
`seconds` is what they took.) Then the averaged weights are evaluated on held-out data. One JSON
line each: steps, ms a step, share of the time waiting for data, the metric that picks the best
checkpoint, training losses, all metrics. (That of mesh/autoencoder is 1 before the first step: its
loss tells optimizers apart.)
"""

import argparse
import dataclasses
import json
import os
import tempfile
import time
import traceback
from itertools import product
from pathlib import Path
from typing import Any

import torch
from steps import stage_of
from timing import synchronise

from quintet import rooms
from quintet.engine.config import Recipe
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import each_setting, updated

READ_EVERY = 50
"""Steps between readings of the metrics, which wait for the device."""


def opened(name: str, recipe: Recipe, path: Path) -> Run:
    folder = RunFolder.create(path, {"settings": {}})
    if recipe.stages:
        frozen.keep(folder, recipe, {}, rooms.load)
        recipe = frozen.resolved(recipe, folder.path)
    return Run(rooms.build(recipe), recipe, World(recipe), folder)


def trained(run: Run, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds of so many steps, and the last training losses."""
    means: dict[str, float] = {}
    synchronise(run.world.device)
    begun = time.perf_counter()
    for number in range(1, steps + 1):
        take_step(run)
        if number % READ_EVERY == 0 or number == steps:
            means = run.meters.read()[0]
            run.meters.ids.clear()
    synchronise(run.world.device)
    return time.perf_counter() - begun, means


def measure(name: str, recipe: Recipe, place: Path, seconds: float) -> dict[str, Any]:
    warm, timed = (30, 20) if recipe.device == "cuda" else (3, 3)
    probe = opened(name, recipe, place / "probe")
    trained(probe, warm)  # compiled and captured
    ms = trained(probe, timed)[0] / timed * 1e3
    probe.close()
    del probe  # and its graphs
    steps = max(1, round(seconds * 1e3 / ms))
    length = {"steps": steps, "schedule_steps": steps, "planned_steps": steps}
    run = opened(name, dataclasses.replace(recipe, **length), place / "run")
    run.stream.waited = 0.0
    taken, means = trained(run, steps)
    metrics = run.evaluate()
    row = {
        "steps": steps,
        "ms": round(ms, 2),
        "seconds": round(taken, 1),
        "waiting": round(run.stream.waited / taken, 3),
        "best": {name: metrics.get(name) for name in (run.task.best or ())[:1]},
        "loss": {n: value for n, value in means.items() if n.endswith("/loss")},
        "skipped": sum(value for n, value in means.items() if n.endswith("/skipped")),
        "metrics": metrics,
    }
    run.close()
    return row


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--learning-rates", nargs="+", type=float, help="default: the recipe's")
    parser.add_argument("--set", nargs="+", default=[], help="settings, as autoencoder=RUN")
    parser.add_argument("--valid-limit", type=int, default=256)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def recipe_of(name: str, asked: argparse.Namespace, place: Path) -> Any:
    limit = {"valid_limit": asked.valid_limit}
    recipe = rooms.recipe_function(name)()
    recipe = each_setting(recipe, lambda field, value: limit.get(field.name, value))
    changes = {"device": asked.device, "workers": asked.workers, "trackers": ()}
    changes |= {key: plain(value) for key, _, value in (s.partition("=") for s in asked.set)}
    for stage, trained_by in recipe.stages.items():
        if stage not in changes:
            changes[stage] = str(stage_of(f"{trained_by}_tiny", place))
    return updated(recipe, changes)


def main() -> None:
    asked = parsed()
    with tempfile.TemporaryDirectory() as folder:
        for name, optimizer in product(asked.recipes, asked.optimizers):
            base = recipe_of(name, asked, Path(folder))
            for rate in asked.learning_rates or [base.optim.learning_rate]:
                changes = {"optim.optimizer": optimizer, "optim.learning_rate": rate}
                row = {"recipe": name, "optimizer": optimizer, "learning_rate": rate}
                with tempfile.TemporaryDirectory(dir=folder) as runs:
                    try:
                        row |= measure(name, updated(base, changes), Path(runs), asked.seconds)
                    except Exception as error:
                        traceback.print_exc()
                        row["error"] = repr(error)[:600]
                print(json.dumps(row), flush=True)
                torch.compiler.reset()


def plain(value: str) -> Any:
    """A number or a list as JSON has it, or a text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


if __name__ == "__main__":
    main()

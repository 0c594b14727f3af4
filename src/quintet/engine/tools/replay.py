"""Replay of one step of a run: its samples and its losses."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintet.engine.config import Recipe
from quintet.engine.errors import RunError
from quintet.engine.launch import _initialise
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.models.pretrained import initial_weights
from quintet.engine.run import Run
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Task


@dataclasses.dataclass
class Replayed:
    losses: dict[str, float]
    ids: list[int]
    samples: list[str]


def replay(build: Callable[[Any], Task], recipe: Recipe, path: Path, step: int) -> Replayed:
    """Restore the last checkpoint before `step` and train up to it. Nothing is written."""
    folder = RunFolder.open(path)
    if not 1 <= step <= recipe.steps:
        raise RunError(f"step {step} is outside 1 … {recipe.steps}")
    paths = {s: checkpoint.path_of(folder.checkpoints, s) for s in folder.steps() if s < step}
    before = [s for s, path in paths.items() if not checkpoint.examine(path)]
    recipe = dataclasses.replace(recipe, workers=0, trackers=())
    run = Run(build(recipe), recipe, World(recipe), folder)
    try:
        if before:
            run.restore(before[-1])
        elif recipe.init_from:
            _initialise(run, initial_weights(recipe.init_from, run.task))
        while run.step < step:
            take_step(run)
        losses = run.meters.read()[1][step - 1]
        ids = run.meters.ids[step - 1]
        source = run.stream.samples.source
        return Replayed(losses, ids, [source.name(index) for index in ids])
    finally:
        run.close()

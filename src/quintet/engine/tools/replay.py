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
from quintet.engine.meters import order_of
from quintet.engine.models.pretrained import initial_weights
from quintet.engine.run import Run
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder, read_lines
from quintet.engine.task import Task


@dataclasses.dataclass
class Replayed:
    losses: dict[str, float]
    ids: list[int]
    samples: list[str]
    checked: str | None
    """Steps whose samples were compared with the log; None if the log does not have them."""


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
        names = [source.name(index) for index in ids]
        return Replayed(losses, ids, names, check_order(run, step))
    finally:
        run.close()


def check_order(run: Run, step: int) -> str | None:
    """Compare the samples of the report that has the step with the log, from the plan alone."""
    reports = [r for r in read_lines(run.folder.metrics) if isinstance(r.get("order"), str)]
    logged = next((r["order"] for r in reports if step in _steps(r["order"])), None)
    if logged is None or run.rollbacks:
        return None  # a rollback has changed the order in between
    steps = _steps(logged)
    before = [r for r in reports if r["step"] < steps[0]]
    begun, position = (before[-1]["step"], before[-1]["samples"]) if before else (0, 0)
    ids: dict[int, list[int]] = {}
    for number in range(begun, steps[-1]):
        requests = run.stream.requests_at(position)
        position += len(requests)
        if number + 1 in steps:
            ids[number] = [request.sample for request in requests]
    if order_of(ids) != logged:
        raise RunError(
            f"the samples of steps {steps[0]} to {steps[-1]} are not those that {run.folder.path} "
            "was trained on, by its log: the data has changed. Restore it to replay the step"
        )
    return f"{steps[0]} to {steps[-1]}"


def _steps(order: str) -> range:
    first, _, rest = order.partition("-")
    last = rest.partition(":")[0]
    known = first.isdecimal() and last.isdecimal()
    return range(int(first), int(last) + 1) if known else range(0)

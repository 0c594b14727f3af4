"""`quintet evaluate`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from quintet import rooms
from quintet.cli.common import (
    Step,
    is_main,
    need_data,
    parse,
    recorded,
    table,
)
from quintet.cli.train import Data
from quintet.engine.config import resolved
from quintet.engine.settings import each_setting


@dataclasses.dataclass(kw_only=True)
class Evaluate:
    """Evaluate the averaged weights on the validation data of the run, or on a folder. Prints a
    table and one line of JSON."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    data: Data = None
    """Folder to evaluate on; the default is the validation split of the run."""
    step: Step = None
    """Checkpoint to use, or best; the default is the newest one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto selects the GPU if there is one."""
    batch_size: int | None = None
    """Batch size of evaluation; the default is that of the run."""


def evaluate(given: list[str]) -> None:
    from quintet.engine.evaluate import evaluate_run
    from quintet.engine.machine.world import World, shut_down
    from quintet.engine.runs.folder import RunFolder, at_step, finite

    asked = parse(Evaluate, given, "evaluate")
    name, recipe = recorded(asked.run)
    if asked.data is None:
        need_data(recipe, asked.run, "name a folder to evaluate on")
    recipe = dataclasses.replace(
        without_limit(recipe) if asked.data else recipe,
        device=asked.device,
        compile="off",
        batch_size=asked.batch_size or recipe.batch_size,
        data=resolved(asked.data) or recipe.data,
    )
    run = at_step(asked.run, asked.step)
    task = rooms.build(name, recipe, RunFolder.open(run).path)
    metrics = evaluate_run(task, recipe, run, World(recipe), whole=bool(asked.data))
    if is_main():
        table(metrics)
        print(json.dumps(finite(metrics), allow_nan=False))
    shut_down()


def without_limit(settings: Any) -> Any:
    """No cap on the number of validation samples."""
    return each_setting(
        settings, lambda field, value: sys.maxsize if field.name == "valid_limit" else value
    )

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
    check_positive,
    check_step,
    is_main,
    need_data,
    parse,
    say,
    table,
)
from quintet.cli.judges import Bench, Pair, pair
from quintet.cli.train import Data
from quintet.cli.trained_on import contents_of_run
from quintet.engine.config import resolved
from quintet.engine.errors import RunError
from quintet.engine.settings import each_setting
from quintet.suggest import command


@dataclasses.dataclass(kw_only=True)
class Evaluate:
    """Evaluate the averaged weights on the validation data of the run, or on a folder. Prints a
    table and one line of JSON. Exports of runs on built-in data can be evaluated as well.

    --judges adds external metrics (quintet judges lists them) on the run's outputs for these
    samples, such as reconstructions or spoken transcripts, next to those of trivial baselines. Each
    number has a receipt.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder, an export of it, or ready/NAME."""
    data: Data = None
    """Folder to evaluate on; the default is the validation split of the run."""
    step: Step = None
    """Checkpoint to use, or best; the default is the newest one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto selects the GPU if there is one."""
    batch_size: int | None = None
    """Batch size of evaluation; the default is that of the run."""
    judges: tuple[str, ...] = ()
    """Names of judges, separated by spaces or commas, or all (those that work on this machine)."""
    count: int | None = None
    """Number of samples to judge; the default is all, or generation.count for mesh transformers."""
    save: Path | None = None
    """New folder for originals and outputs, to compare them again with --pair."""
    json_line: bool = False
    """Print only the line of JSON."""


def evaluate(arguments: list[str]) -> None:
    from quintet.engine.evaluate import evaluate_opened, open_run
    from quintet.engine.machine.world import World, shut_down
    from quintet.engine.runs.folder import RunFolder, at_step, finite

    if "--pair" in arguments:
        pair(parse(Pair, arguments, "evaluate"))
        return
    asked = parse(Evaluate, arguments, "evaluate")
    check_positive("--batch-size", asked.batch_size)
    check_positive("--count", asked.count)
    check_step(asked.step)
    check_judging(asked)
    run = at_step(asked.run, asked.step)
    folder = RunFolder.open(run)
    recipe = rooms.recipe_of(folder.about, folder.path)
    if asked.data is None:
        moved = command("evaluate", asked.run, "FOLDER")
        need_data(recipe, asked.run, "name a folder to evaluate on", moved)
    trained_by = recipe
    recipe = dataclasses.replace(
        whole_folder(recipe) if asked.data else recipe,
        device=asked.device,
        compile="off",
        batch_size=asked.batch_size or recipe.batch_size,
        data=resolved(asked.data) or recipe.data,
    )
    own_stages = None if "model" in folder.about else folder.path
    task = rooms.build(recipe, own_stages, recorded_split=not asked.data)
    bench = None
    if asked.judges:
        bench = Bench.of(rooms.family_of(recipe), task, asked.judges, asked.save)
    world = World(recipe)
    opened = open_run(task, run, world, whole=bool(asked.data))
    metrics: dict[str, Any] = {}
    metrics |= evaluate_opened(task, recipe, opened, world)
    shut_down()  # the main process judges alone; the other ranks need not wait
    if not is_main():
        return
    if asked.data:
        metrics["trained_on"] = trained_on(trained_by, run, task)
        warn(metrics, asked.run)
    if not asked.json_line:
        table(metrics)
    if bench is not None:
        metrics |= bench.judge(opened, world, asked)
    print(json.dumps(finite(metrics), allow_nan=False))


def whole_folder(settings: Any) -> Any:
    """Settings that take every file of a folder, for training or for validation."""
    changes = {"valid_limit": sys.maxsize, "valid_folder": None, "split_file": None}
    changes["exclude_held_out"] = False
    return each_setting(settings, lambda field, value: changes.get(field.name, value))


def check_judging(asked: Evaluate) -> None:
    for flag in ("count", "save"):
        if getattr(asked, flag) is not None and not asked.judges:
            raise RunError(f"--{flag} is for --judges; name some, or all")
    save = asked.save
    if save is not None and save.exists() and (not save.is_dir() or any(save.iterdir())):
        raise RunError(f"{save} is not an empty folder; name a new one for --save")


# -- samples that the run was trained on ------------------------------------------------------


def trained_on(trained_by: Any, run: Path, task: Any) -> int | None:
    """The number of evaluated samples that the run was trained on; None if it is unknown."""
    from quintet.engine.runs.folder import RunFolder
    from quintet.media.held_out import contents_of, shared

    trained = contents_of_run(RunFolder.open(run).path, trained_by)
    evaluated = [contents_of(task.data(split)) for split in ("train", "valid")]
    if trained is None:
        return None
    return sum(int(shared(contents, trained).sum()) for contents in evaluated if contents)


def warn(metrics: dict[str, Any], run: Path) -> None:
    if metrics["trained_on"]:
        say(
            f"{metrics['trained_on']} of the {metrics['samples']} samples were trained on, so the "
            f"metrics are optimistic; {command('evaluate', run)} measures the validation data alone"
        )

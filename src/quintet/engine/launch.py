"""From a recipe and a folder to a run that trains; every process agrees, or none starts."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import quintet
from quintet.engine import frozen
from quintet.engine.config import FREE, Recipe, differences, to_json
from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder
from quintet.engine.loop import train
from quintet.engine.part import load_strictly
from quintet.engine.run import Run
from quintet.engine.signals import Signals
from quintet.engine.sinks import Journal, Progress, Sink, trackers
from quintet.engine.task import Task
from quintet.engine.world import World

Mode = Literal["new", "resume", "continue"]


def start(
    build: Callable[[Any], Task],
    recipe: Recipe,
    path: Path,
    *,
    name: str | None,
    mode: Mode = "new",
    sinks: Callable[[RunFolder], Sequence[Sink]] = lambda folder: (),
    weights: Callable[[str, Task], Mapping[str, Any]] | None = None,
    stages: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> int:
    """Train to the end and return the step reached. `name` is the recipe's, None from Python,
    which may hand over frozen stages as they are."""
    with Signals(recipe.minutes) as signals:
        world = World(recipe)
        folder, recipe = _agree_on_folder(world, recipe, path, name, mode)
        world.precision = recipe.precision
        run: Run | None = None
        try:
            _settle_stages(world, folder, recipe, stages or {})
            task = build(frozen.resolved(recipe, folder.path))
            shown = _sinks(world, folder, recipe, name, sinks, progress)
            run = Run(task, recipe, world, folder, shown, signals)
            if recipe.init_from and weights and not folder.steps():
                _initialise(run, weights(recipe.init_from, task))
            train(run)
            return run.step
        finally:
            run.close() if run else folder.unlock()
            if folder.created and (run is None or run.step == 0):
                folder.discard()  # so that the corrected command can be given again


def _sinks(
    world: World,
    folder: RunFolder,
    recipe: Recipe,
    name: str | None,
    more: Callable[[RunFolder], Sequence[Sink]],
    progress: bool,
) -> list[Sink]:
    if not world.is_main:
        return []
    found: list[Sink] = [Journal(folder), *trackers(recipe.trackers, folder), *more(folder)]
    if progress:
        done = folder.steps()
        found.append(
            Progress(name or folder.path.name, recipe.steps, lambda: done[-1] if done else 0)
        )
    return found


def _agree_on_folder(
    world: World, recipe: Recipe, path: Path, name: str | None, mode: Mode
) -> tuple[RunFolder, Recipe]:
    """The main process opens the folder; the others follow, or fail with the same sentence."""
    folder, problem = RunFolder(path), None
    if world.is_main:
        try:
            folder, recipe = _open(world, recipe, path, name, mode)
        except RunError as error:
            problem = str(error)
    problem, about, recipe = world.from_main((problem, folder.about, recipe))
    if problem:
        folder.unlock()
        raise RunError(problem)
    folder.about = about
    return folder, recipe


def _open(
    world: World, recipe: Recipe, path: Path, name: str | None, mode: Mode
) -> tuple[RunFolder, Recipe]:
    exists = (path / "config.json").exists()
    if mode == "new" or (mode == "continue" and not exists):
        # What was left open is written down as it turned out, or another machine would differ.
        recipe = dataclasses.replace(
            recipe,
            schedule_steps=recipe.schedule_steps or recipe.steps,
            precision=world.precision,  # type: ignore[arg-type]
        )
        return RunFolder.create(path, _about(world, recipe, name)), recipe
    folder = RunFolder.open(path)
    folder.lock()
    try:
        folder.checkpoints.mkdir(exist_ok=True)
        if folder.about.get("recipe") != name:
            raise RunError(f"{path} is a run of {folder.about.get('recipe')}, not of {name}")
        recipe = _same_run(folder, recipe, mode)
        recipe = _keep_global_batch(folder, recipe, world)
        about = {key: folder.about[key] for key in ("id", "frozen") if key in folder.about}
        folder.write_config({**_about(world, recipe, name), **about})
    except BaseException:
        folder.unlock()
        raise
    return folder, recipe


def _settle_stages(
    world: World, folder: RunFolder, recipe: Recipe, live: Mapping[str, Any]
) -> None:
    problem = None
    if world.is_main and recipe.stages:
        try:
            frozen.keep(folder, recipe, live)
        except (RunError, OSError) as error:
            problem = str(error)
    problem, folder.about = world.from_main((problem, folder.about))
    if problem:
        raise RunError(problem)


def _about(world: World, recipe: Recipe, name: str | None) -> dict[str, Any]:
    return {
        "quintet": quintet.__version__,
        "recipe": name,
        "processes": world.size,
        "global_batch": recipe.batch_size * recipe.accumulate * world.size,
        "settings": to_json(recipe),
    }


def _same_run(folder: RunFolder, recipe: Recipe, mode: Mode) -> Recipe:
    """What would change the result must be as it was; more steps keep the schedule's length."""
    old = folder.about.get("settings", {})
    length = old.get("schedule_steps")
    if recipe.schedule_steps is None:
        recipe = dataclasses.replace(recipe, schedule_steps=length)
    if recipe.precision == "auto":
        recipe = dataclasses.replace(recipe, precision=old.get("precision"))
    found = differences(old, to_json(recipe))
    changed = {n: v for n, v in found.items() if n.split(".")[0] not in FREE | {"steps"}}
    if mode == "continue" and "steps" in found:
        changed["steps"] = found["steps"]
    if changed:
        listed = "; ".join(f"{n} was {a!r} and is now {b!r}" for n, (a, b) in changed.items())
        raise RunError(f"{folder.path} was started with another configuration: {listed}")
    return recipe


def _keep_global_batch(folder: RunFolder, recipe: Recipe, world: World) -> Recipe:
    wanted = folder.about.get("global_batch")
    here = recipe.batch_size * world.size
    if not isinstance(wanted, int) or wanted < 1 or wanted // here * here != wanted:
        raise RunError(
            f"the run's global batch is {wanted}; {world.size} processes of batch_size "
            f"{recipe.batch_size} cannot make it up: choose a batch_size that divides it"
        )
    return dataclasses.replace(recipe, accumulate=wanted // here)


def _initialise(run: Run, weights: Mapping[str, Any]) -> None:
    """Weights alone, at step 0; a checkpoint of this run, if there is one, comes after and wins."""
    for name, state in weights.items():
        part = run.parts[name]
        load_strictly(part.module, state, f"init_from {run.recipe.init_from}: {name}")
        if part.average is not None:
            part.average.load({key: state[key] for key in part.average.names})

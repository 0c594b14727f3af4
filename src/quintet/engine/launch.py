"""From a recipe and a folder to a run that trains; every process agrees, or none starts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from quintet.console import protected
from quintet.engine import skipped
from quintet.engine.config import Recipe, to_json
from quintet.engine.data import record
from quintet.engine.errors import RunError
from quintet.engine.evaluate import Outside
from quintet.engine.loop import train
from quintet.engine.machine import compiling, hardware, memory
from quintet.engine.machine.signals import Signals
from quintet.engine.machine.world import World
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.run import Run
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.remote.mirror import Mirror
from quintet.engine.runs.remote.uploader import Uploader
from quintet.engine.runs.sinks import Journal, Progress, Sink
from quintet.engine.runs.trackers import trackers
from quintet.engine.settings import asked_changes
from quintet.engine.settled import Mode, settled
from quintet.engine.task import Task
from quintet.engine.tools import auto_batch
from quintet.suggest import command
from quintet.version import __version__

LEFT_ALONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo says where a process that it waits for is gone."""


def start(
    build: Callable[[Any], Task],
    recipe: Recipe,
    path: Path,
    *,
    name: str | None,
    opening: str | None = None,
    mode: Mode = "new",
    sinks: Callable[[RunFolder], Sequence[Sink]] = lambda folder: (),
    weights: Callable[[str, Task], Mapping[str, Any]] | None = None,
    stages: Mapping[str, Any] | None = None,
    load: Callable[[str], Any] | None = None,
    judge: Callable[[Task, Recipe], Outside | None] | None = None,
    progress: bool = True,
) -> int:
    """Train to the end and return the step reached. `name` is the recipe's, None for any module of
    Python, which may pass frozen stages as models. `opening` is said first."""
    if recipe.judges and judge is None:
        raise RunError(
            "judges run only from the command line; omit them here, and judge the run afterwards: "
            f"{command('evaluate', path, '--judges', 'all')}"
        )
    with protected(), Signals(recipe.minutes) as signals:
        world = World(recipe)
        folder, recipe = world.on_main(partial(_open, world, recipe, path, name, mode))
        if not world.is_main:
            folder = RunFolder(path, folder.about)  # the main process holds the lock
        world.use_precision(recipe.precision)
        run: Run | None = None
        try:
            keep = partial(frozen.keep, folder, recipe, stages or {}, load)
            folder.about = world.on_main(keep, expected=(OSError,))
            make = lambda settings: build(frozen.resolved(settings, folder.path))
            recipe, fitting = _auto_batch(make, world, folder, recipe, name)
            task = make(recipe)
            shown = _sinks(world, folder, recipe, name, sinks, progress)
            outside = judge(task, recipe) if judge and recipe.judges and world.is_main else None
            run = Run(task, recipe, world, folder, shown, signals, outside)
            _record(run)
            if recipe.init_from and weights and not folder.steps():
                run.parts.initialise(weights(recipe.init_from, task), recipe, run.say)
                run.say(f"init_from: weights of {recipe.init_from}; the optimizer starts fresh")
            if folder.restarted:
                run.say("starting over: the earlier start in this folder left no checkpoint")
            for sentence in filter(None, (opening, fitting)):
                run.say(sentence)
            train(run)
            _require_trained(run)
            return run.step
        except Exception as error:
            if memory.ran_out(error):
                raise auto_batch.explained(recipe, world, run, error) from error
            if world.size > 1 and any(text in str(error) for text in LEFT_ALONE):
                raise RunError(
                    "another process of this run has ended; its last message, if any, names the "
                    f"cause. Resume with: {command('resume', path)}"
                ) from error
            raise
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
    sinks: list[Sink] = [
        Journal(folder),
        *trackers(recipe.trackers, folder, recipe.tracker),
        *more(folder),
    ]
    if progress:
        start = max(folder.steps(), default=0)
        sinks.append(Progress(name or folder.path.name, recipe.steps, start))
    return sinks


def _open(
    world: World, asked: Recipe, path: Path, name: str | None, mode: Mode
) -> tuple[RunFolder, Recipe]:
    mirror = Mirror.of(path)
    if mirror is None:
        return _open_folder(world, asked, path, name, mode)
    uploader = Uploader(mirror, (asked.keep_last, asked.keep_every), bool(asked.rollback))
    try:
        folder, recipe = _open_folder(world, asked, path, name, mode)
    except BaseException:
        uploader.close()
        raise
    folder.uploader = uploader
    return folder, recipe


def _open_folder(
    world: World, asked: Recipe, path: Path, name: str | None, mode: Mode
) -> tuple[RunFolder, Recipe]:
    settle = partial(
        settled, asked, path=path, mode=mode, processes=world.size, precision=world.precision
    )
    if mode == "new" or (mode == "resume_or_new" and not (path / "config.json").exists()):
        recipe = settle(None)
        # A choice by the clock would not be deterministic.
        choice = None if recipe.deterministic else compiling.UNDECIDED
        about = {**_about(world, recipe, name), compiling.RECORD: choice}
        return RunFolder.create(path, about), recipe
    folder = RunFolder.open(path)
    folder.lock()
    try:
        folder.checkpoints.mkdir(exist_ok=True)
        if folder.about.get("recipe") != name:
            raise RunError(f"{path} is a run of {folder.about.get('recipe')}, not of {name}")
        recipe = settle(folder.about)
        if recipe.accept_changed_data:
            record.take_new(path)
        changes = asked_changes(folder.about.get("settings", {}), recipe)
        if changes:
            before = folder.about.get("changed")
            folder.about["changed"] = {**(before if isinstance(before, dict) else {}), **changes}
        lasting = ("id", "frozen", "auto_batch", "changed", "data", "main", compiling.RECORD)
        about = {key: folder.about[key] for key in lasting if key in folder.about}
        folder.write_config({**_about(world, recipe, name), **about})
    except RunError:
        folder.unlock()
        if mode == "resume_or_new" and not folder.steps():
            return _open_folder(world, asked, path, name, "new")
        raise
    except BaseException:
        folder.unlock()
        raise
    return folder, recipe


def _auto_batch(
    make: Callable[[Any], Task], world: World, folder: RunFolder, recipe: Recipe, name: str | None
) -> tuple[Recipe, str | None]:
    """With --auto-batch, once: the micro-batch that fits, recorded for a resume, and a sentence."""
    if not recipe.auto_batch or "auto_batch" in folder.about:
        return recipe, None
    fitting = auto_batch.find(make, recipe, world)
    if world.is_main:
        sizes = {"asked": recipe.batch_size, "found": fitting.batch_size}
        folder.write_config({**folder.about, **_about(world, fitting, name), "auto_batch": sizes})
    folder.about = world.from_main(folder.about)
    return fitting, (
        f"auto-batch: {fitting.batch_size} of {recipe.batch_size} samples fit at a time; "
        f"{fitting.accumulate} micro-batches make a step of the same global batch"
    )


def _about(world: World, recipe: Recipe, name: str | None) -> dict[str, Any]:
    return {
        "quintet": __version__,
        "recipe": name,
        "processes": world.size,
        "global_batch": recipe.global_batch(world.size),
        "settings": to_json(recipe),
        "machine": hardware.facts(world.device),
        "versions": hardware.versions(world.device.type),
    }


def _record(run: Run) -> None:
    """The number of samples, for the report, a text of theirs, for suggestions, and the model, for
    `from_pretrained` of the run."""
    if not run.world.is_main:
        return
    valid = run.fixed.samples.size if run.fixed else 0
    data = {"train": run.stream.samples.size, "valid": valid}
    text = record.short_text(run.stream.samples.source)
    about = {**run.folder.about, "data": {**data, **({"text": text} if text else {})}}
    network = run.task.parts[run.task.main].network
    if isinstance(network, Pretrained):
        about["main"] = {
            "part": run.task.main,
            "model": network.label(),
            "config": to_json(network.config),
        }
    run.folder.write_config(about)


def _require_trained(run: Run) -> None:
    """At the end of a run; its last checkpoint stays."""
    causes = skipped.problems(run.skipped.counts)
    for part in run.parts.nonfinite(run.world):
        causes.append(f"the weights of '{part}' are not finite")
    if causes:
        message = f"the run has failed: {'; '.join(causes)}"
        run.say(message)
        raise RunError(f"{message}. {run.folder.path} keeps its checkpoints; {skipped.REMEDY}")

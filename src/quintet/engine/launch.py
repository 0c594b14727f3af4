"""From a recipe and a folder to a run that trains; every process agrees, or none starts."""

import dataclasses
import os
import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from quintet.console import protected
from quintet.engine import skipped
from quintet.engine.config import Recipe, differences, to_json
from quintet.engine.data import record
from quintet.engine.errors import RunError
from quintet.engine.loop import train
from quintet.engine.machine import compiling, fsdp, memory
from quintet.engine.machine.signals import Signals
from quintet.engine.machine.world import World
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.part import LivePart, load_strictly
from quintet.engine.run import Outside, Run
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.sinks import Journal, Progress, Sink
from quintet.engine.runs.trackers import trackers
from quintet.engine.settings import asked_changes, free_names
from quintet.engine.task import Task
from quintet.engine.tools import auto_batch
from quintet.version import __version__

Mode = Literal["new", "resume", "resume_or_new"]
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
            "judges work in runs of the command line; leave them out here, and judge the run "
            f"afterwards: quintet evaluate {shlex.quote(str(path))} --judges all"
        )
    with protected(), Signals(recipe.minutes) as signals:
        world = World(recipe)
        folder, recipe = _agree_on_folder(world, recipe, path, name, mode)
        world.precision = recipe.precision
        run: Run | None = None
        try:
            _settle_stages(world, folder, recipe, stages or {}, load)
            make = lambda settings: build(frozen.resolved(settings, folder.path))
            recipe, fitting = _auto_batch(make, world, folder, recipe, name)
            task = make(recipe)
            shown = _sinks(world, folder, recipe, name, sinks, progress)
            outside = judge(task, recipe) if judge and recipe.judges and world.is_main else None
            run = Run(task, recipe, world, folder, shown, signals, outside)
            _record(run)
            if recipe.init_from and weights and not folder.steps():
                _initialise(run, weights(recipe.init_from, task))
            if folder.restarted:
                run.say("starting over: the earlier start in this folder left no checkpoint")
            for sentence in filter(None, (opening, fitting)):
                run.say(sentence)
            train(run)
            skipped.require_trained(run)
            return run.step
        except Exception as error:
            if memory.ran_out(error):
                raise auto_batch.explained(recipe, world, run, error) from error
            if world.size > 1 and any(text in str(error) for text in LEFT_ALONE):
                raise RunError(
                    "another process of this run has ended; its last message, if any, names the "
                    f"cause. Resume with: quintet resume {shlex.quote(str(path))}"
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
        done = folder.steps()
        sinks.append(
            Progress(name or folder.path.name, recipe.steps, lambda: done[-1] if done else 0)
        )
    return sinks


def _agree_on_folder(
    world: World, recipe: Recipe, path: Path, name: str | None, mode: Mode
) -> tuple[RunFolder, Recipe]:
    """The main process opens the folder, and holds its lock; the others follow."""
    folder = RunFolder(path)

    def open_it() -> tuple[dict[str, Any], Recipe]:
        nonlocal folder
        folder, settled = _open(world, recipe, path, name, mode)
        return folder.about, settled

    folder.about, recipe = world.on_main(open_it)
    return folder, recipe


def _open(
    world: World, recipe: Recipe, path: Path, name: str | None, mode: Mode
) -> tuple[RunFolder, Recipe]:
    exists, asked = (path / "config.json").exists(), recipe
    if mode == "new" or (mode == "resume_or_new" and not exists):
        # What was left open is written down as it turned out, or another machine would differ.
        length = recipe.schedule_steps or recipe.steps
        recipe = dataclasses.replace(
            recipe,
            schedule_steps=length,
            planned_steps=recipe.planned_steps or length,
            precision=world.precision,  # type: ignore[arg-type]
        )
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
        recipe = _same_run(folder, recipe, mode)
        if mode == "resume_or_new" and recipe.auto_batch and "auto_batch" in folder.about:
            recipe = auto_batch.with_micro_batch(recipe, folder.about["settings"]["batch_size"])
        recipe = _keep_global_batch(folder, recipe, world)
        if recipe.accept_changed_data:
            record.take_new(path)
        changes = asked_changes(folder.about.get("settings", {}), recipe)
        if changes:
            before = folder.about.get("changed")
            folder.about["changed"] = {**(before if isinstance(before, dict) else {}), **changes}
        kept = ("id", "frozen", "auto_batch", "changed", compiling.RECORD)
        about = {key: folder.about[key] for key in kept if key in folder.about}
        folder.write_config({**_about(world, recipe, name), **about})
    except RunError:
        folder.unlock()
        if mode == "resume_or_new" and not folder.steps():
            return _open(world, asked, path, name, "new")
        raise
    except BaseException:
        folder.unlock()
        raise
    return folder, recipe


def _settle_stages(
    world: World,
    folder: RunFolder,
    recipe: Recipe,
    live: Mapping[str, Any],
    load: Callable[[str], Any] | None,
) -> None:
    def keep() -> dict[str, Any]:
        if recipe.stages:
            frozen.keep(folder, recipe, live, load)
        return folder.about

    folder.about = world.on_main(keep, expected=(OSError,))


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
        "global_batch": recipe.batch_size * recipe.accumulate * world.size,
        "settings": to_json(recipe),
        "machine": _machine(world),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _machine(world: World) -> dict[str, Any]:
    """What the run is trained on, for its page."""
    on_gpu = world.device.type == "cuda"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "device": torch.cuda.get_device_name(world.device) if on_gpu else processor(),
        "cores": os.cpu_count(),
        "memory": f"{memory / 2**30:.1f} GiB",
        "system": platform.platform(),
    }


def processor() -> str:
    """Linux keeps its name in a file; elsewhere the platform knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _record(run: Run) -> None:
    """The number of samples, for the report, and the model, for `from_pretrained` of the run."""
    if not run.world.is_main:
        return
    valid = run.fixed.samples.size if run.fixed else 0
    about = {**run.folder.about, "data": {"train": run.stream.samples.size, "valid": valid}}
    network = run.task.parts[run.task.main].network
    if isinstance(network, Pretrained):
        about["main"] = {
            "part": run.task.main,
            "model": network.label(),
            "config": to_json(network.config),
        }
    run.folder.write_config(about)


def _same_run(folder: RunFolder, recipe: Recipe, mode: Mode) -> Recipe:
    """What would change the result must be as it was; a longer run stretches its schedule."""
    old = folder.about.get("settings", {})
    steps, length = old.get("steps"), old.get("schedule_steps")
    if recipe.schedule_steps in (None, length):  # nothing was asked for
        longer = length == steps and recipe.steps > length
        recipe = dataclasses.replace(recipe, schedule_steps=recipe.steps if longer else length)
    if recipe.planned_steps is None:
        recipe = dataclasses.replace(recipe, planned_steps=old.get("planned_steps"))
    if recipe.precision == "auto":
        recipe = dataclasses.replace(recipe, precision=old.get("precision"))
    changes = differences(old, to_json(recipe))
    free = free_names(recipe) - ({"data"} if mode == "resume_or_new" else set())
    changed = {name: values for name, values in changes.items() if name not in free}
    if changed:
        listed = "; ".join(f"{n} was {a!r} and is now {b!r}" for n, (a, b) in changed.items())
        raise RunError(
            f"{folder.path} was started with another configuration: {listed}; put these back, or "
            f"start a new run with another --run, and --init-from {folder.path} for its weights"
        )
    return recipe


def _keep_global_batch(folder: RunFolder, recipe: Recipe, world: World) -> Recipe:
    wanted = folder.about.get("global_batch")
    here = recipe.batch_size * world.size
    if not isinstance(wanted, int) or wanted < 1 or wanted // here * here != wanted:
        raise RunError(
            f"the run's global batch is {wanted}; {world.size} processes of batch_size "
            f"{recipe.batch_size} do not divide it: choose a batch_size that does"
        )
    return dataclasses.replace(recipe, accumulate=wanted // here)


def _initialise(run: Run, weights: Mapping[str, Any]) -> None:
    """Weights alone, at step 0; a checkpoint of this run, if there is one, comes after and wins."""
    for name, state in weights.items():
        part = run.parts[name]
        if run.recipe.init_partial:
            state = _fitting(run, part, state)
        load_strictly(part.module, state, f"init_from {run.recipe.init_from}: {name}")
        part.load_average(state)


def _fitting(run: Run, part: LivePart, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state that fits, and the part's own weights for the rest, which is named."""
    own = {name: fsdp.whole(value) for name, value in part.module.state_dict().items()}
    fit = {n: value for n, value in state.items() if n in own and value.shape == own[n].shape}
    if not fit:
        raise RunError(f"init_from {run.recipe.init_from}: nothing of it fits '{part.name}'")
    for names, reason in (
        ([name for name in own if name not in fit], "start from their initial values"),
        ([name for name in state if name not in fit], "of init_from are left out"),
    ):
        if names:
            listed = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            run.say(f"init_from: {len(names)} of '{part.name}' {reason}: {listed}")
    return {**own, **fit}

"""Verifying a run folder from end to end, for `quintet doctor RUN`. Nothing is changed by it.

Faults make the folder unsound; each says how to repair it. Notes are what a person may wonder
about, such as the leftovers of a kill, which the next resume clears away by itself.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import nn

import quintet
from quintet.engine import checkpoint, frozen, journal, optim
from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder, read_json
from quintet.engine.journal import Finding, note
from quintet.engine.task import Part, Task

Shapes = dict[str, tuple[int, ...]]


class Verdict(NamedTuple):
    findings: list[Finding]
    sound: list[int]
    """Steps of the checkpoints without a fault."""
    locked: bool
    """Whether a process trains in the folder now."""

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.fault]


def verify(run: Path, build: Callable[[dict[str, Any]], Task | None]) -> Verdict:
    """All that can be checked. `build` makes the task of a config.json, or None of one that was
    started from Python with a model of its own; RunError says why it cannot be made."""
    locked = is_locked(run)
    folder = RunFolder(run, read_json(run / "config.json"))
    found: list[Finding] = []
    if locked:
        found.append(note(run, "a process is training here now", "ask again when it has ended"))
    found += [*check_config(folder), *check_frozen(folder)]
    task: Task | None = None
    try:
        task = build(folder.about)
    except RunError as error:
        found.append(Finding(f"{run}/config.json", str(error), "restore it from a copy"))
    sound: list[int] = []
    for step in folder.steps():
        faults = list(check_checkpoint(folder, step, task))
        if locked and not checkpoint.path_of(folder.checkpoints, step).exists():
            continue  # the process that trains here has removed it meanwhile
        sound += [] if faults else [step]
        found += faults
    found = [with_way_out(finding, folder, sound) for finding in found]
    newest = sound[-1] if sound else 0
    found += [*check_best(folder), *journal.check(folder, newest, locked)]
    found += leftovers(folder, locked)
    return Verdict(found, sound, locked)


def is_locked(run: Path) -> bool:
    """Whether another process holds the folder; asked without making a lock file."""
    try:
        handle = os.open(run / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


# -- configuration and frozen stages --------------------------------------------------------


def check_config(folder: RunFolder) -> Iterator[Finding]:
    about, where = folder.about, f"{folder.path}/config.json"
    restore = "restore config.json from a copy, or put the value back"
    if not folder.id:
        yield Finding(where, "the run's id is missing, so its checkpoints are nobody's", restore)
    if about.get("quintet") != quintet.__version__:
        versions = f"Quintet {about.get('quintet')}, this is {quintet.__version__}"
        yield note(where, f"it was written by {versions}", "exact resume wants the same version")
    settings = about.get("settings")
    if not isinstance(settings, Mapping):
        yield Finding(where, "it holds no settings", restore)
        return
    parts = (settings.get("batch_size"), settings.get("accumulate"), about.get("processes"))
    if all(type(part) is int for part in parts):
        size, accumulate, processes = parts
        made = size * accumulate * processes  # type: ignore[operator]
        if made != about.get("global_batch"):
            split = f"batch_size {size} x accumulate {accumulate} x {processes} processes"
            what = f"global_batch is {about.get('global_batch')}, but {split} make {made}"
            yield Finding(where, what, restore)


def check_frozen(folder: RunFolder) -> Iterator[Finding]:
    digests = folder.about.get("frozen", {})
    if not isinstance(digests, Mapping):
        where = f"{folder.path}/config.json"
        yield Finding(where, "frozen is no object", "restore config.json from a copy")
        return
    for name, wanted in digests.items():
        try:
            frozen.check(folder.path, {name: wanted})
        except (RunError, OSError) as error:
            place = folder.frozen / name
            repair = f"copy the {name} that the run was built on into {place}, from a backup"
            yield Finding(str(place), str(error).partition("; ")[0], repair)


# -- checkpoints ----------------------------------------------------------------------------


def check_checkpoint(folder: RunFolder, step: int, task: Task | None) -> Iterator[Finding]:
    path = checkpoint.path_of(folder.checkpoints, step)
    problem = checkpoint.examine(path)
    if problem:
        yield Finding(str(path), problem, "")
        return
    about = checkpoint.read_about(path)
    for what in (*_wrong_page(folder, step, about), *_wrong_files(path, about, task, step)):
        yield Finding(str(path), what, "")


def _wrong_page(folder: RunFolder, step: int, about: Mapping[str, Any]) -> Iterator[str]:
    settings = folder.about.get("settings") or {}
    if about.get("run") != folder.id:
        yield f"it belongs to another run ({about.get('run')})"
    if about.get("step") != step:
        yield f"state.json says step {about.get('step')}"
    if isinstance(settings, Mapping) and about.get("seed") != settings.get("seed"):
        yield f"it was written with seed {about.get('seed')}, config.json says otherwise"


def _wrong_files(
    path: Path, about: Mapping[str, Any], task: Task | None, step: int
) -> Iterator[str]:
    listed = sorted(about["files"])
    unlisted = sorted(set(os.listdir(path)) - {*listed, "state.json"})
    if unlisted:
        yield f"{unlisted[0]} is not of this checkpoint"
    held: dict[str, Shapes] = {}
    for name in listed:
        try:
            held[name.removesuffix(".safetensors")] = shapes = dict[str, tuple[int, ...]]()
            yield from (f"{name}: {what}" for what in _read_through(path / name, shapes, step))
        except (SafetensorError, OSError) as error:
            yield f"{name} cannot be read ({error})"
    if task is not None:
        yield from _unlike(held, task, step)


def _read_through(file: Path, shapes: Shapes, step: int) -> Iterator[str]:
    """One tensor at a time, so that a large model needs little memory."""
    bad: list[str] = []
    counts: set[float] = set()
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            tensor = tensors.get_tensor(name)
            shapes[name] = tuple(tensor.shape)
            if tensor.is_floating_point() and not tensor.isfinite().all():
                bad.append(name)
            elif file.name.endswith(".optim.safetensors") and name.startswith("step/"):
                counts.add(float(tensor))
    if bad:
        yield f"{len(bad)} tensors are not finite, {bad[0]} is the first"
    if len(counts) > 1 or max(counts, default=0) > step:
        yield f"its optimiser counts {sorted(counts)[:3]} steps, but the run has taken {step}"


def _unlike(held: Mapping[str, Shapes], task: Task, step: int) -> Iterator[str]:
    """Where the tensors are not those of the networks that the recipe builds."""
    parts = {name: part for name, part in task.parts.items() if part.optimiser is not None}
    wanted = {file: shapes for name, part in parts.items() for file, shapes in _files(name, part)}
    optimisers = {f"{name}.optim" for name in parts}
    if set(held) != set(wanted) | optimisers:
        lacking = sorted((set(wanted) | optimisers) - set(held))
        surplus = sorted(set(held) - set(wanted) - optimisers)
        yield f"its files are of another recipe (missing: {lacking}; surplus: {surplus})"
        return
    for file, shapes in wanted.items():
        yield from (f"{file}: {what}" for what in _differences(held[file], shapes))
    for name, part in parts.items():
        whens = [update.when for update in task.updates if update.part == name]
        late = step <= min((when.start for when in whens), default=0)
        yield from _wrong_moments(f"{name}.optim", held[f"{name}.optim"], part.network, late)


def _files(name: str, part: Part) -> Iterator[tuple[str, Shapes]]:
    yield name, _shapes(part.network.state_dict())
    if part.optimiser is not None and part.optimiser.average:
        yield f"{name}.ema", _shapes(optim.trainable(part.network))
    if part.aside is not None:
        yield f"{name}.aside", _shapes(part.aside.state_dict())


def _shapes(tensors: Mapping[str, Any]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _differences(held: Shapes, wanted: Shapes) -> Iterator[str]:
    missing, surplus = sorted(set(wanted) - set(held)), sorted(set(held) - set(wanted))
    if missing:
        yield f"{len(missing)} names are missing, {missing[0]} is the first"
    if surplus:
        yield f"{len(surplus)} names are surplus, {surplus[0]} is the first"
    for name in sorted(set(held) & set(wanted)):
        if held[name] != wanted[name]:
            yield f"{name} has shape {held[name]}, the recipe builds {wanted[name]}"


def _wrong_moments(file: str, held: Shapes, network: nn.Module, late: bool) -> Iterator[str]:
    """Moments of every trained parameter and of no other, each of its parameter's shape."""
    if not held:
        if not late:
            yield f"{file} is empty, but its part has taken steps"
        return
    shapes = _shapes(optim.trainable(network))
    kinds = {name.partition("/")[0] for name in held}
    wanted = {f"{kind}/{name}": shape for kind in kinds for name, shape in shapes.items()}
    counts = {name: () for name, shape in held.items() if shape == ()}  # how many steps were taken
    yield from (f"{file}: {what}" for what in _differences(held, {**wanted, **counts}))


# -- the way out ----------------------------------------------------------------------------


def with_way_out(finding: Finding, folder: RunFolder, sound: list[int]) -> Finding:
    """For a bad checkpoint, what a resume would do and what is to be done by hand."""
    if finding.repair:
        return finding
    steps = folder.steps()
    bad = Path(finding.where).name
    if not sound:
        repair = "none is sound: restore one from a backup, or start a new run with --run"
    elif steps and bad == checkpoint.path_of(folder.checkpoints, steps[-1]).name:
        repair = (
            f"move {finding.where} away or delete it yourself; then 'quintet resume {folder.path}' "
            f"goes on from step {sound[-1]}"
        )
    else:
        repair = f"delete {finding.where} yourself; a later checkpoint does without it"
    return finding._replace(repair=repair)


def check_best(folder: RunFolder) -> Iterator[Finding]:
    where = f"{folder.path}/best.json"
    repair = f"delete {where} yourself; the next evaluation chooses the best anew"
    try:
        best = folder.best()
    except RunError as error:
        yield Finding(where, str(error).removeprefix(f"{where} "), repair)
        return
    if best is None:
        return
    if type(best.get("step")) is not int or not isinstance(best.get("value"), (int, float)):
        yield Finding(where, "step or value is missing", repair)
    elif best["step"] not in folder.steps():
        yield Finding(where, f"it names step {best['step']}, which is not there", repair)


def leftovers(folder: RunFolder, locked: bool) -> Iterator[Finding]:
    """What an interrupted write left behind under its temporary name."""
    if locked:
        return  # it may be under way
    for entry in sorted(folder.checkpoints.glob(f"{checkpoint.TEMPORARY}*")):
        way = f"the next 'quintet resume {folder.path}' clears it away"
        yield note(entry, "a checkpoint that was not finished", way)
    for place in (folder.path, folder.frozen):
        for entry in sorted(place.glob(".*.writing")):
            yield note(entry, "a file that was not finished", "delete it yourself, or leave it")

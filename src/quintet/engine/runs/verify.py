"""Verification of a run folder, for `quintet doctor RUN`. Read-only.

Faults come with a repair. Notes explain harmless findings, such as partial files of a killed
process, which the next resume removes.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from quintet.engine import optim, skipped
from quintet.engine.data import record
from quintet.engine.errors import RunError
from quintet.engine.runs import checkpoint, frozen
from quintet.engine.runs.folder import RunFolder, read_json
from quintet.engine.task import Part, Task
from quintet.files import PARTIAL
from quintet.suggest import command
from quintet.version import __version__

Shapes = dict[str, tuple[int, ...]]


class Finding(NamedTuple):
    """A fault of a run folder, or a note about it."""

    path: str
    problem: str
    repair: str
    fault: bool = True


def note(path: object, problem: str, repair: str) -> Finding:
    return Finding(str(path), problem, repair, fault=False)


class Verdict(NamedTuple):
    findings: list[Finding]
    intact: list[int]
    """Steps of the checkpoints without a fault."""

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.fault]


def verify(run: Path, build: Callable[[dict[str, Any]], Task | None]) -> Verdict:
    """Check everything in a run folder. `build` returns the task of a config.json, or None for a
    run that was started from Python with its own model; it raises RunError if it cannot."""
    locked = is_locked(run)
    folder = RunFolder(run, read_json(run / "config.json"))
    findings: list[Finding] = []
    if locked:
        findings.append(note(run, "a process is training here", "check again when it has ended"))
    findings += [*check_config(folder), *check_frozen(folder)]
    task: Task | None = None
    try:
        task = build(folder.about)
    except RunError as error:
        findings.append(Finding(f"{run}/config.json", str(error), "restore it from a copy"))
    intact: list[int] = []
    faults: list[Finding] = []
    for step in folder.steps():
        path = checkpoint.path_of(folder.checkpoints, step)
        problems = list(check_checkpoint(folder, step, task))
        if locked and not path.exists():
            continue  # removed meanwhile by the process that trains here
        intact += [] if problems else [step]
        faults += [Finding(str(path), problem, "") for problem in problems]
    findings += [fault._replace(repair=repair_of(fault, folder, intact)) for fault in faults]
    findings += check_updates(folder)
    findings += check_best(folder)
    findings += check_data(folder)
    for path in (folder.metrics, folder.events):
        findings += check_lines(folder, path, locked)
    return Verdict([*findings, *([] if locked else leftovers(folder))], intact)


def is_locked(run: Path) -> bool:
    """Whether another process holds the lock of the folder; creates no lock file."""
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
    about, path = folder.about, f"{folder.path}/config.json"
    restore = "restore config.json from a copy, or put the value back"
    if not folder.id:
        yield Finding(path, "the run's id is missing, so it owns no checkpoint", restore)
    if about.get("quintet") != __version__:
        versions = f"Quintet {about.get('quintet')}, this is {__version__}"
        yield note(path, f"written by {versions}", "exact resume needs the same version")
    settings = about.get("settings")
    if not isinstance(settings, Mapping):
        yield Finding(path, "it holds no settings", restore)
        return
    factors = (settings.get("batch_size"), settings.get("accumulate"), about.get("processes"))
    if all(type(factor) is int for factor in factors):
        size, accumulate, processes = factors
        product = size * accumulate * processes  # type: ignore[operator]
        if product != about.get("global_batch"):
            split = f"batch_size {size} x accumulate {accumulate} x {processes} processes"
            problem = f"global_batch is {about.get('global_batch')}, but {split} is {product}"
            yield Finding(path, problem, restore)


def check_frozen(folder: RunFolder) -> Iterator[Finding]:
    digests = folder.about.get("frozen", {})
    if not isinstance(digests, Mapping):
        path = f"{folder.path}/config.json"
        yield Finding(path, "frozen is not an object", "restore config.json from a copy")
        return
    for name, digest in digests.items():
        try:
            frozen.check(folder.path, {name: digest})
        except (RunError, OSError) as error:
            path = folder.frozen / name
            repair = f"restore {path} from a backup"
            yield Finding(str(path), str(error).partition("; ")[0], repair)


# -- checkpoints ----------------------------------------------------------------------------


def check_checkpoint(folder: RunFolder, step: int, task: Task | None) -> Iterator[str]:
    path = checkpoint.path_of(folder.checkpoints, step)
    problem = checkpoint.examine(path)
    if problem:
        yield problem
        return
    state = checkpoint.read_about(path)
    settings = folder.about.get("settings")
    if state.get("run") != folder.id:
        yield f"it belongs to another run ({state.get('run')})"
    if isinstance(settings, Mapping) and state.get("seed") != settings.get("seed"):
        yield f"it was written with seed {state.get('seed')}, config.json has another"
    shapes: dict[str, Shapes] = {}
    for name in sorted(state["files"]):
        try:
            stored, nonfinite = checkpoint.read_shapes(path / name)
        except (SafetensorError, OSError) as error:
            yield f"{name} cannot be read ({error})"
            return
        shapes[name.removesuffix(".safetensors")] = stored
        if nonfinite:
            yield f"{name}: {len(nonfinite)} tensors are not finite, {nonfinite[0]} is the first"
    if task is not None:
        yield from compare(shapes, task)


def compare(shapes: Mapping[str, Shapes], task: Task) -> Iterator[str]:
    """Differences from the networks that the recipe builds. Optimizer state is not compared."""
    parts = {name: part for name, part in task.parts.items() if part.optimizer is not None}
    expected = {file: built for name, part in parts.items() for file, built in files(name, part)}
    names = set(expected) | {f"{name}.optim" for name in parts}
    if set(shapes) != names:
        missing, surplus = sorted(names - set(shapes)), sorted(set(shapes) - names)
        yield f"its files belong to another recipe (missing: {missing}; unexpected: {surplus})"
        return
    for file, built in expected.items():
        stored = shapes[file]
        for name in sorted(set(stored) | set(built)):
            if stored.get(name) != built.get(name):
                yield (
                    f"{file}: {name} has shape {stored.get(name, 'missing')}, "
                    f"the recipe builds {built.get(name, 'no such tensor')}"
                )


def files(name: str, part: Part) -> Iterator[tuple[str, Shapes]]:
    yield name, shapes_of(part.network.state_dict())
    if part.optimizer is not None and part.optimizer.ema_decay:
        yield f"{name}.ema", shapes_of(optim.trainable(part.network))
    if part.extra_state is not None:
        yield f"{name}.extra_state", shapes_of(part.extra_state.state_dict())


def shapes_of(tensors: Mapping[str, Any]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def repair_of(fault: Finding, folder: RunFolder, intact: list[int]) -> str:
    """Repair of a damaged checkpoint: what resume does, and what is left to the user."""
    if not intact:
        return "none is intact: restore one from a backup, or start a new run with --run"
    newest = checkpoint.path_of(folder.checkpoints, folder.steps()[-1])
    if Path(fault.path) == newest:
        return (
            f"move {newest} away or delete it; then {resume_command(folder)} "
            f"resumes from step {intact[-1]}"
        )
    return f"delete {fault.path}; a later checkpoint does not need it"


def resume_command(folder: RunFolder) -> str:
    return f"`{command('resume', folder.path)}`"


def check_updates(folder: RunFolder) -> Iterator[Finding]:
    """Whether the newest checkpoint comes from a run that trained at all."""
    path = checkpoint.path_of(folder.checkpoints, max(folder.steps(), default=0))
    try:
        about = checkpoint.read_about(path)
    except (OSError, ValueError, RecursionError):
        return  # absent, or named as damaged
    for problem in skipped.problems(skipped.read(about)):
        yield Finding(str(path), problem, f"{skipped.REMEDY}, and start again with another --run")


def check_best(folder: RunFolder) -> Iterator[Finding]:
    path = f"{folder.path}/best.json"
    repair = f"delete {path}; the next evaluation writes it again"
    try:
        best = folder.best()
    except RunError as error:
        yield Finding(path, str(error).removeprefix(f"{path} "), repair)
        return
    if best is not None and best["step"] not in folder.steps():
        yield Finding(path, f"it names step {best['step']}, which has no checkpoint", repair)


def check_data(folder: RunFolder) -> Iterator[Finding]:
    path = folder.path / record.NAME
    try:
        if path.exists():
            record.read(path)
    except RunError as error:
        problem = str(error).removeprefix(f"{path} ").partition("; ")[0]
        yield Finding(str(path), problem, f"restore {path}, or delete it to take the data as it is")


# -- reports, events and leftovers ------------------------------------------------------------


def check_lines(folder: RunFolder, path: Path, locked: bool) -> Iterator[Finding]:
    """Every line must be a JSON record with a step."""
    resume = resume_command(folder)
    if path.is_symlink():
        yield Finding(str(path), "it is a link; a run writes only here", "put the file here")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = text.splitlines()
    broken = [number for number, line in enumerate(lines, 1) if not is_record(line)]
    if broken and broken[-1] == len(lines) and not text.endswith("\n"):
        broken.pop()
        if not locked:
            yield note(path, "its last line is incomplete, after a kill", f"{resume} drops it")
    if broken:
        problem = f"{len(broken)} lines are not JSON records, line {broken[0]} is the first"
        yield Finding(str(path), problem, f"{resume} drops them; their content is lost")


def is_record(line: str) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and type(record.get("step")) is int


def leftovers(folder: RunFolder) -> Iterator[Finding]:
    """Partial files and folders of interrupted writes."""
    repair = f"the next {resume_command(folder)} removes it"
    for parent in (folder.checkpoints, folder.path, folder.frozen):
        for entry in sorted(parent.glob(PARTIAL)):
            yield note(entry, "an interrupted write", repair)

"""Memory, time and disk that a run will need, measured before it starts.

`measure` builds the run in a temporary folder, takes dry steps, and reports each number as soon as
it is known, so that a caller can time out. `forecast` formats the numbers.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from quintet.engine import evaluate
from quintet.engine.config import Recipe
from quintet.engine.loop import take_step
from quintet.engine.machine import memory
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Task
from quintet.engine.tools import auto_batch

WARMUP_STEPS, TIMED_STEPS = {"cpu": 2, "cuda": 19}, {"cpu": 8, "cuda": 20}
"""Steps of each phase after the first and before timing, and timed. On a GPU steps are captured
after three of a kind, and every fourth has a penalty."""
MAX_SECONDS = 10.0
"""Time limit for each of the two."""
Facts = dict[str, Any]


def measure(
    build: Callable[[Any], Task],
    recipe: Recipe,
    path: Path,
    report: Callable[[Facts], None],
    load: Callable[[str], Any] | None = None,
) -> None:
    """Report what a run of the recipe needs. `path` is a temporary, empty folder; `load` loads
    frozen stages."""
    world = World(recipe)
    folder = RunFolder(path)
    if recipe.stages:
        frozen.keep(folder, recipe, {}, load)
    make = lambda settings: build(frozen.resolved(settings, path))
    if recipe.auto_batch:
        recipe = auto_batch.find(make, recipe, world)
    sizes = {"batch_size": recipe.batch_size, "accumulate": recipe.accumulate}
    report({"device": world.device.type, "precision": world.precision, **sizes})
    run = Run(make(recipe), recipe, world, folder)
    try:
        parts = run.parts.items()
        counts = {n: sum(p.numel() for p in part.parameters.values()) for n, part in parts}
        report({"parameters": counts})  # each at once: the system may kill the next measurement
        report(_memory(run))
        files = [file for _, part in parts for file in part.state().values()]
        report({"checkpoint": sum(tensor.nbytes for file in files for tensor in file.values())})
        report({"phases": [_phase(run, start) for start in _starts(run)]})
        if world.device.type == "cuda":  # captured steps keep memory of their own
            report({"peak": torch.cuda.max_memory_reserved(world.device)})
        report(_evaluation(run))
        report(_exhibits(run))
    finally:
        run.close()


def seconds_per_step(
    build: Callable[[Any], Task],
    recipe: Recipe,
    path: Path,
    load: Callable[[str], Any] | None = None,
) -> float:
    """Median of some first steps, as single ones may stall on a busy machine. `path` is a
    temporary, empty folder."""
    folder = RunFolder(path)
    if recipe.stages:
        frozen.keep(folder, recipe, {}, load)
    run = Run(build(frozen.resolved(recipe, path)), recipe, World(recipe), folder)
    try:
        _steps(run, WARMUP_STEPS["cpu"])
        return statistics.median(_timed(run) for _ in range(TIMED_STEPS["cpu"]))
    finally:
        run.close()


def _memory(run: Run) -> Facts:
    """Peak memory of a step with all updates due and the largest of some samples."""
    device = run.world.device
    run.step = auto_batch.busiest(run.task.updates)
    batches = auto_batch.heavy_batches(run.task, run.stream.samples.source, run.recipe, run.world)
    for _ in range(2):
        auto_batch.dry_step(run, batches)
    if device.type != "cuda":
        return {"peak": memory.peak(), "memory": memory.total()}
    total = torch.cuda.get_device_properties(device).total_memory
    return {"peak": torch.cuda.max_memory_reserved(device), "memory": total}


def _starts(run: Run) -> list[int]:
    """Steps at which an update starts, so that steps become slower."""
    starts = {update.when.start for update in run.task.updates if update.when.every}
    return sorted(start for start in starts | {0} if start < run.recipe.steps)


def _phase(run: Run, start: int) -> Facts:
    run.step, kind = start, run.world.device.type
    _steps(run, 1)  # which may compile for minutes
    _steps(run, WARMUP_STEPS[kind])
    run.stream.waited = 0.0
    begin, position = time.perf_counter(), run.stream.position
    count = _steps(run, TIMED_STEPS[kind])
    seconds = time.perf_counter() - begin
    return {
        "start": start,
        "seconds": seconds / count,
        "samples": (run.stream.position - position) / count,
        "waiting": run.stream.waited / seconds,
    }


def _steps(run: Run, max_steps: int, max_seconds: float = MAX_SECONDS) -> int:
    """Take steps up to a number or the time limit; return how many."""
    begin, count = time.perf_counter(), 0
    while count < max_steps and time.perf_counter() - begin < max_seconds:
        take_step(run)
        _synchronize(run)
        count += 1
    return count


def _timed(run: Run) -> float:
    begin = time.perf_counter()
    _steps(run, 1)
    return time.perf_counter() - begin


def _synchronize(run: Run) -> None:
    if run.world.device.type == "cuda":
        torch.cuda.synchronize(run.world.device)


def _evaluation(run: Run) -> Facts:
    """Seconds of one evaluation, from a few of its batches after the first."""
    if run.fixed is None:
        return {"evaluation": 0.0}
    with evaluate.eval_mode(list(run.parts.values()), averaged=True):
        marks: list[float] = []
        for batch in islice(run.fixed, 4):
            with run.world.autocast():
                run.task.measure(run.parts.nets, batch)
            _synchronize(run)
            marks.append(time.perf_counter())
    each = (marks[-1] - marks[0]) / max(1, len(marks) - 1)
    return {"evaluation": 2 * each * len(run.fixed.batches)}  # EMA weights, and live ones


def _exhibits(run: Run) -> Facts:
    """Bytes and seconds of the exhibits of one evaluation."""
    begin = time.perf_counter()
    for batch in islice(run.fixed or (), 1):
        with evaluate.eval_mode(list(run.parts.values()), averaged=True), run.world.autocast():
            run.exhibit(batch)
    files = [file for file in run.folder.exhibits.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return {"exhibits": size, "exhibit_seconds": time.perf_counter() - begin}


# -- formatting -----------------------------------------------------------------------------


def fits(facts: Mapping[str, Any]) -> bool:
    return "peak" in facts and facts["peak"] <= (1 - auto_batch.RESERVE) * facts["memory"]


def forecast(recipe: Recipe, facts: Mapping[str, Any], free: int) -> dict[str, str]:
    """Rows of a table; missing measurements are left out or shown as `?`."""
    evaluations = times(recipe.steps, recipe.evaluate_every)
    size, each = facts.get("batch_size", recipe.batch_size), facts.get("accumulate", 1)
    rows = {"device": f"{facts.get('device', '?')}, {facts.get('precision', '?')}"}
    rows["global batch"] = f"{size * each} ({size} at a time, {each} per step, one process)"
    counts = facts.get("parameters", {})
    rows["parameters"] = ", ".join(f"{n} {count / 1e6:.2f} M" for n, count in counts.items())
    if "peak" in facts:
        word = "fits" if fits(facts) else "does not fit"
        rows["memory"] = (
            f"{word}: {bytes_of(facts['peak'])} of {bytes_of(facts['memory'])} at the peak"
        )
    if "phases" in facts:
        rows |= _times(recipe, facts, evaluations)
    if "checkpoint" in facts:
        count = max_checkpoints(recipe)
        disk = count * facts["checkpoint"] + evaluations * facts.get("exhibits", 0)
        rows["checkpoint"] = f"{bytes_of(facts['checkpoint'])}, at most {count} at once"
        rows["exhibits"] = (
            f"{bytes_of(facts['exhibits'])} x {evaluations}" if "exhibits" in facts else "?"
        )
        enough = "" if disk < free else ": NOT ENOUGH"
        rows["disk"] = f"{bytes_of(disk)} of {bytes_of(free)} free here{enough}"
    return rows


def _times(recipe: Recipe, facts: Mapping[str, Any], evaluations: int) -> dict[str, str]:
    phases = facts["phases"]
    ends = [*(phase["start"] for phase in phases[1:]), recipe.steps]
    training = sum((end - phase["start"]) * phase["seconds"] for phase, end in zip(phases, ends))
    evaluating = evaluations * (facts.get("evaluation", 0.0) + facts.get("exhibit_seconds", 0.0))
    rows = {}
    for phase in phases:
        name = "step" if phase["start"] == 0 else f"step from {phase['start']:,} on"
        rate = f"{phase['samples'] / phase['seconds']:,.1f} samples/s"
        waiting = f"waiting for data {phase['waiting']:.0%}"
        rows[name] = f"{duration(phase['seconds'])} ({rate}, {waiting})"
    if "evaluation" in facts:
        rows["evaluations"] = f"{evaluations}, {duration(evaluating)} in all"
    rows["run"] = f"about {duration(training + evaluating)} for {recipe.steps:,} steps"
    return rows


def times(steps: int, every: int) -> int:
    """Occurrences in a run; the last step always counts."""
    return -(-steps // every) if every else 1


def max_checkpoints(recipe: Recipe) -> int:
    """Maximum on disk: the newest, those of keep_every, the best, and one being written."""
    permanent = recipe.steps // recipe.keep_every if recipe.keep_every else 0
    return min(recipe.keep_last + permanent + 2, times(recipe.steps, recipe.save_every) + 1)


def bytes_of(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    return f"{hours} h" if hours < 72 else f"{hours / 24:.0f} days"

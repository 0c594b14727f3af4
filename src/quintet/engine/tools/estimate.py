"""What a run would take, measured before it starts: memory, time and disk.

`measure` builds the run in a folder that is thrown away, takes dry steps, and says each number as
soon as it has it: whoever listens may lose patience. `forecast` makes sentences of the numbers.
"""

import dataclasses
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

WARMING, TIMED = 3, 8
"""Steps of each phase that are taken first, and that are timed then."""
SECONDS = 10.0
"""And no more of each than fit into this."""
Facts = dict[str, Any]
Say = Callable[[Facts], None]


def measure(
    build: Callable[[Any], Task],
    recipe: Recipe,
    path: Path,
    say: Say,
    load: Callable[[str], Any] | None = None,
) -> None:
    """Say what a run of the recipe takes; `path` is an empty folder to throw away, and `load`
    loads frozen stages."""
    world = World(recipe)
    folder = RunFolder(path)
    if recipe.stages:
        frozen.keep(folder, recipe, {}, load)
    make = lambda settings: build(frozen.resolved(settings, path))
    if recipe.auto_batch:
        recipe = auto_batch.find(make, recipe, world)
    say({"device": world.device.type, "precision": world.precision})
    say({"batch_size": recipe.batch_size, "accumulate": recipe.accumulate})
    task = make(dataclasses.replace(recipe, trackers=()))
    run = Run(task, recipe, world, folder)
    try:
        parts = run.parts.items()
        counts = {n: sum(p.numel() for p in part.parameters.values()) for n, part in parts}
        say({"parameters": counts})
        say(_memory(run))
        files = [file for _, part in parts for file in part.state().values()]
        say({"checkpoint": sum(tensor.nbytes for file in files for tensor in file.values())})
        say({"phases": [_phase(run, start) for start in _starts(run)]})
        say(_evaluation(run))
        say(_exhibits(run))
    finally:
        run.close()


def _memory(run: Run) -> Facts:
    """The most that a step holds, all updates due, with the heaviest of some samples."""
    device, cuda = run.world.device, run.world.device.type == "cuda"
    run.step = auto_batch.busiest(run.task.updates)
    batches = auto_batch.heavy_batches(run.task, run.stream.samples.source, run.recipe, run.world)
    for _ in range(2):
        auto_batch.dry_step(run, batches)
    if cuda:
        return {
            "peak": torch.cuda.max_memory_reserved(device),
            "memory": torch.cuda.get_device_properties(device).total_memory,
        }
    return {"peak": memory.peak(), "memory": memory.total()}


def _starts(run: Run) -> list[int]:
    """Where a step begins to cost more, because another update joins."""
    starts = {update.when.start for update in run.task.updates if update.when.every}
    return sorted(start for start in starts | {0} if start < run.recipe.steps)


def _phase(run: Run, start: int) -> Facts:
    run.step = start
    _steps(run, WARMING)
    run.stream.waited = 0.0
    begin = time.perf_counter()
    count = _steps(run, TIMED)
    seconds = time.perf_counter() - begin
    return {"start": start, "seconds": seconds / count, "waiting": run.stream.waited / seconds}


def _steps(run: Run, most: int) -> int:
    """Take so many, or as many as fit into the time; say how many they were."""
    begin, count = time.perf_counter(), 0
    while count < most and time.perf_counter() - begin < SECONDS:
        take_step(run)
        _settle(run)
        count += 1
    return count


def _settle(run: Run) -> None:
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
                run.task.measure(_nets(run), batch)
            _settle(run)
            marks.append(time.perf_counter())
    each = (marks[-1] - marks[0]) / max(1, len(marks) - 1)
    return {"evaluation": 2 * each * len(run.fixed.batches)}  # averaged weights, and live ones


def _exhibits(run: Run) -> Facts:
    """Bytes and seconds of what an evaluation shows."""
    begin = time.perf_counter()
    for batch in islice(run.fixed or (), 1):
        with evaluate.eval_mode(list(run.parts.values()), averaged=True), run.world.autocast():
            run._exhibit(_nets(run), batch)
    files = [file for file in run.folder.exhibits.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return {"exhibits": size, "exhibit_seconds": time.perf_counter() - begin}


def _nets(run: Run) -> dict[str, Any]:
    return {**run.frozen, **{name: part.module for name, part in run.parts.items()}}


# -- sentences ------------------------------------------------------------------------------


def fits(facts: Mapping[str, Any]) -> bool:
    return "peak" in facts and facts["peak"] <= (1 - auto_batch.SPARE) * facts["memory"]


def forecast(recipe: Recipe, facts: Mapping[str, Any], free: int) -> dict[str, str]:
    """Rows for a table, from what was measured; what is missing is said to be."""
    evaluations = times(recipe.steps, recipe.evaluate_every)
    size, each = facts.get("batch_size", recipe.batch_size), facts.get("accumulate", 1)
    found = {"device": f"{facts.get('device', '?')}, {facts.get('precision', '?')}"}
    found["global batch"] = f"{size * each} ({size} at a time, {each} per step, one process)"
    counts = facts.get("parameters", {})
    found["parameters"] = ", ".join(f"{n} {count / 1e6:.2f} M" for n, count in counts.items())
    if "peak" in facts:
        word = "fits" if fits(facts) else "does not fit"
        found["memory"] = (
            f"{word}: {bytes_of(facts['peak'])} of {bytes_of(facts['memory'])} at the peak"
        )
    if "phases" in facts:
        found |= _times(recipe, facts, evaluations, size * each)
    if "checkpoint" in facts:
        count = kept_at_once(recipe)
        disk = count * facts["checkpoint"] + evaluations * facts.get("exhibits", 0)
        found["checkpoint"] = f"{bytes_of(facts['checkpoint'])}, at most {count} at once"
        found["exhibits"] = (
            f"{bytes_of(facts['exhibits'])} x {evaluations}" if "exhibits" in facts else "?"
        )
        enough = "" if disk < free else ": NOT ENOUGH"
        found["disk"] = f"{bytes_of(disk)} of {bytes_of(free)} that are free here{enough}"
    return found


def _times(
    recipe: Recipe, facts: Mapping[str, Any], evaluations: int, batch: int
) -> dict[str, str]:
    phases = facts["phases"]
    ends = [*(phase["start"] for phase in phases[1:]), recipe.steps]
    training = sum((e - p["start"]) * p["seconds"] for p, e in zip(phases, ends))
    looking = evaluations * (facts.get("evaluation", 0.0) + facts.get("exhibit_seconds", 0.0))
    shown = {}
    for phase in phases:
        name = "step" if phase["start"] == 0 else f"step from {phase['start']:,} on"
        seconds = phase["seconds"]
        rate = f"{batch / seconds:,.1f} samples/s, waiting for data {phase['waiting']:.0%}"
        shown[name] = f"{duration(seconds)} ({rate})"
    shown["evaluations"] = f"{evaluations}, {duration(looking)} in all"
    shown["run"] = f"about {duration(training + looking)} for {recipe.steps:,} steps"
    return shown


def times(steps: int, every: int) -> int:
    """How often something happens in a run; at the last step always."""
    return -(-steps // every) if every else 1


def kept_at_once(recipe: Recipe) -> int:
    """Checkpoints on disk at most: the newest, the kept ones, the best, and one being written."""
    kept = recipe.steps // recipe.keep_every if recipe.keep_every else 0
    return min(recipe.keep_last + kept + 2, times(recipe.steps, recipe.save_every) + 1)


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

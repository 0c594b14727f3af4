"""Replay of steps of a run: one, with its samples and losses, or some of its log, to verify it."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from quintet.engine.config import Recipe
from quintet.engine.data import record
from quintet.engine.errors import RunError
from quintet.engine.evaluate import eval_mode, measure_in_contexts
from quintet.engine.loop import take_step
from quintet.engine.machine import hardware
from quintet.engine.machine.world import World
from quintet.engine.meters import order_of
from quintet.engine.models.pretrained import initial_weights
from quintet.engine.rollback import read_history
from quintet.engine.run import Run
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder, finite, read_lines
from quintet.engine.task import Task

Record = dict[str, Any]
TOLERANCE = 0.02
"""Relative difference of a loss where the kernels, the device or the versions are not exact."""
JITTER = 0.1
"""Seconds between reading the two clocks of a report, on a busy machine."""


@dataclasses.dataclass
class Replayed:
    losses: dict[str, float]
    ids: list[int]
    samples: list[str]
    steps: str
    """Those of the report that has the step."""
    checked: bool
    """Whether the samples of these steps were compared with the log."""
    compared: "list[Compared]"
    """Mean losses over these steps."""
    why_not: str
    """Why no losses were compared; empty if they were."""
    changes: str
    """Files and texts of the training data that have changed since the last start."""


def replay(build: Callable[[Any], Task], recipe: Recipe, path: Path, step: int) -> Replayed:
    """Restore the last checkpoint before `step`, or before the steps of its report, and train up to
    it, or through the report. Nothing is written."""
    folder = RunFolder.open(path)
    if not 1 <= step <= recipe.steps:
        raise RunError(f"step {step} is outside 1 … {recipe.steps}")
    recipe = dataclasses.replace(recipe, workers=0, trackers=())
    saved = intact(folder)
    run = Run(build(recipe), recipe, World(recipe), folder)
    try:
        report, tolerance, why_not = _comparable(run, step, saved)
        steps = _steps(report["order"]) if report else range(step, step + 1)
        _begin(run, max((s for s in saved if s < steps[0]), default=None))
        checked = check_order(run, step)
        means, table = _train_through(run, steps)
        ids = run.meters.ids[step - 1]
        names = [run.stream.samples.source.name(index) for index in ids]
        rows = list(_rows(run.step, report, _losses(means), tolerance)) if report else []
        changes = record.changes(path, run.stream.samples.source)
        losses, spelled = table[step - 1], f"{steps[0]} to {steps[-1]}"
        return Replayed(losses, ids, names, spelled, checked, rows, why_not, changes)
    finally:
        run.close()


def _comparable(
    run: Run, step: int, saved: Mapping[int, Record]
) -> tuple[Record | None, float, str]:
    """The report that has the step if its losses can be compared, and their tolerance; otherwise
    why they cannot."""
    folder, world = run.folder, run.world
    reports = [r for r in read_lines(folder.metrics) if isinstance(r.get("order"), str)]
    report = next((r for r in reports if step in _steps(r["order"])), None)
    if report is None:
        return None, 0.0, "the log has no report of this step"
    last = _steps(report["order"])[-1]
    rates = {f"{n}/learning_rate": p.learning_rate_at(last - 1) for n, p in run.parts.items()}
    inexact = _inexact(folder, saved, run.recipe, world)
    if _start(report, saved) == -1:
        return None, 0.0, "a rollback came between"
    if world.size != folder.about.get("processes", 1):
        return None, 0.0, f"trained by {folder.about['processes']} processes"
    if any(report.get(name, rate) != rate for name, rate in rates.items()):
        return None, 0.0, "the learning rate was different"
    if inexact and report not in _near(reports, saved):
        return None, 0.0, f"rounding errors grow from the last checkpoint on; {inexact}"
    return report, TOLERANCE if inexact else 0.0, ""


def intact(folder: RunFolder) -> dict[int, Record]:
    """state.json of the intact checkpoints, oldest first."""
    paths = {step: checkpoint.path_of(folder.checkpoints, step) for step in folder.steps()}
    return {
        step: checkpoint.read_about(path)
        for step, path in paths.items()
        if not checkpoint.examine(path)
    }


def _begin(run: Run, step: int | None) -> None:
    """From a checkpoint, or from the weights that the run began with."""
    if step is not None:
        run.restore(step)
    elif run.recipe.init_from:
        weights = initial_weights(run.recipe.init_from, run.task)
        run.parts.initialise(weights, run.recipe, run.say)


def check_order(run: Run, step: int) -> bool:
    """Compare the samples of the report that has the step with the log, from the plan alone; False
    where the log does not have them."""
    reports = [r for r in read_lines(run.folder.metrics) if isinstance(r.get("order"), str)]
    logged = next((r["order"] for r in reports if step in _steps(r["order"])), None)
    if logged is None or run.rollbacks.past:
        return False  # a rollback has changed the order in between
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
            f"the samples of steps {steps[0]} to {steps[-1]} differ from those in the log of "
            f"{run.folder.path}: the data has changed. Restore it to replay the step"
        )
    return True


def _steps(order: str) -> range:
    first, _, rest = order.partition("-")
    last = rest.partition(":")[0]
    known = first.isdecimal() and last.isdecimal()
    return range(int(first), int(last) + 1) if known else range(0)


# -- verification of a log ---------------------------------------------------------------------


@dataclasses.dataclass
class Compared:
    """One value of a report, logged and replayed."""

    step: int
    name: str
    logged: Any
    replayed: Any
    verified: bool

    @property
    def difference(self) -> float | None:
        """Relative to the larger of the two; None where that means nothing."""
        values = (self.logged, self.replayed)
        if not all(isinstance(value, (int, float)) for value in values):
            return None
        largest = max(map(abs, values))
        return abs(self.logged - self.replayed) / largest if largest > 1e-6 else 0.0


@dataclasses.dataclass
class Verification:
    rows: list[Compared]
    defects: list[str]
    """Contradictions within the log, and between the log and the checkpoints."""
    tolerance: float
    """0 where the replayed values must be the same bits."""
    reason: str
    """Why they must be, or need not."""

    @property
    def verified(self) -> bool:
        return not self.defects and all(row.verified for row in self.rows)


def verify(
    build: Callable[[Any], Task], recipe: Recipe, path: Path, count: int, seed: int
) -> Verification:
    """Compare `count` random reports of the log with a replay of their steps, the evaluation of the
    newest checkpoint with another one, and the log with itself and the checkpoints. Nothing is
    written."""
    folder = RunFolder.open(path)
    saved = intact(folder)
    reports = [r for r in read_lines(folder.metrics) if isinstance(r.get("order"), str)]
    for report in reports:
        for name in ("step", "samples", "seconds", "samples_per_second"):
            if not isinstance(report.get(name), (int, float)) or report[name] <= 0:
                raise RunError(f"{folder.metrics}: a report has no usable {name}")
    recipe = dataclasses.replace(recipe, trackers=())
    world = World(recipe)
    if world.size != folder.about.get("processes", 1):
        raise RunError(f"{path} was trained by {folder.about['processes']} processes, not by one")
    reason = _inexact(folder, saved, recipe, world)
    tolerance = TOLERANCE if reason else 0.0
    chosen = _choose(_near(reports, saved) if tolerance else reports, saved, count, seed)
    run = Run(build(recipe), recipe, world, folder)
    rows: list[Compared] = []
    try:
        for start, of_start in chosen.items():  # the start of the run first: it is not restored
            _begin(run, start)
            for report in of_start:
                rows += _compare(run, report, tolerance)
        rows += _evaluate(run, saved, tolerance)
    finally:
        run.close()
    exact = "same device, versions and settings; deterministic kernels"
    return Verification(rows, contradictions(reports, saved), tolerance, reason or exact)


def _choose(
    reports: Sequence[Record], saved: Mapping[int, Record], count: int, seed: int
) -> dict[int | None, list[Record]]:
    """Random reports in the order of the run, by the checkpoint to replay each from."""
    starts = [(report, _start(report, saved)) for report in reports]
    usable = [(report, start) for report, start in starts if start != -1]
    if not usable:
        raise RunError("metrics.jsonl has no report whose steps could be replayed")
    numbers = random.Random(seed).sample(range(len(usable)), min(count, len(usable)))
    chosen: dict[int | None, list[Record]] = {}
    for report, start in (usable[number] for number in sorted(numbers)):
        chosen.setdefault(start, []).append(report)
    return chosen


def _near(reports: Sequence[Record], saved: Mapping[int, Record]) -> list[Record]:
    """The first report after each checkpoint and after the start, where rounding errors have not
    grown yet: after 60 steps the loss of a video tokenizer was 6 % apart."""
    firsts: dict[int | None, Record] = {}
    for report in reports:
        firsts.setdefault(_start(report, saved), report)
    return list(firsts.values())


def _start(report: Record, saved: Mapping[int, Record]) -> int | None:
    """The newest checkpoint before the report's first step, None for the start of the run, and -1
    where a rollback in between has changed the order."""
    steps = _steps(report["order"])
    before = [step for step in saved if steps and step < steps[0]]
    start = before[-1] if before else None
    history = [read_history(about, Path(str(step)))[1] for step, about in saved.items()]
    own = len(history[list(saved).index(start)]) if start is not None else 0
    later = history[-1][own:] if history else []
    return -1 if not steps or any(entry["to"] < steps[-1] for entry in later) else start


def _inexact(
    folder: RunFolder, saved: Mapping[int, Record], recipe: Recipe, world: World
) -> str | None:
    """Why replayed values may differ from the logged ones; None if they may not."""
    if world.device.type != "cpu" and not recipe.deterministic:
        return "trained without --deterministic"
    trained, facts = folder.about, list[tuple[str, Any, Any]]()
    machine, versions = (trained.get(name, {}) for name in ("machine", "versions"))
    changed = hardware.changes(machine.get("device"), versions, world.device)
    if saved:
        newest = saved[max(saved)]
        facts += [("threads", newest.get("threads"), torch.get_num_threads())]
        facts += [("precision", newest.get("precision"), world.precision)]
    changed += [f"{name} was {then}, is {now}" for name, then, now in facts if then != now]
    return "; ".join(changed) or None


def _compare(run: Run, report: Record, tolerance: float) -> Iterator[Compared]:
    """Train through the steps of a report, and compare what was logged of them."""
    means, _ = _train_through(run, _steps(report["order"]))
    exact = {"order": order_of(run.meters.ids), "samples": run.stream.position}
    yield from _rows(run.step, report, exact, 0.0)
    # Single terms and norms of gradients vary more than losses do.
    yield from _rows(run.step, report, _losses(means) if tolerance else means, tolerance)


def _train_through(run: Run, steps: range) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """Means of the metrics over these steps, and their values at each."""
    while run.step < steps[-1]:
        if run.step + 1 == steps[0]:
            run.meters.entries.clear()
            run.meters.ids.clear()
        take_step(run)
    return run.meters.read()


def _losses(means: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in means.items() if name.endswith("/loss")}


def _evaluate(run: Run, saved: Mapping[int, Record], tolerance: float) -> Iterator[Compared]:
    """Measure the newest checkpoint that was evaluated once more, with its averaged weights."""
    logged = [r for r in read_lines(run.folder.metrics) if any(n.startswith("val/") for n in r)]
    logged = [report for report in logged if report["step"] in saved]
    if not logged or run.fixed is None:
        return
    run.restore(logged[-1]["step"])
    parts = list(run.parts.values())
    averaged = [partial(eval_mode, parts, True)]
    [metrics] = measure_in_contexts(averaged, run.task, run.parts.nets, run.fixed, run.world)
    metrics = {f"val/{name}": value for name, value in metrics.items()}
    yield from _rows(run.step, logged[-1], metrics, tolerance)


def _rows(
    step: int, report: Record, values: Mapping[str, Any], tolerance: float
) -> Iterator[Compared]:
    for name, value in finite(values).items():
        row = Compared(step, name, report.get(name), value, report.get(name) == value)
        if tolerance and row.difference is not None:
            row.verified = row.difference <= tolerance
        yield row


def contradictions(reports: Sequence[Record], saved: Mapping[int, Record]) -> list[str]:
    """Time and samples only grow, at the rate that is logged too, and agree with checkpoints."""
    defects: list[str] = []
    for before, after in pairwise(reports):
        between = f"between the reports of steps {before['step']} and {after['step']}"
        if not all(before[name] < after[name] for name in ("step", "samples", "seconds")):
            defects.append(f"step, samples or seconds do not grow {between}")
        elif _steps(after["order"])[:1] == range(before["step"] + 1, before["step"] + 2):
            took = after["seconds"] - before["seconds"]
            least = (after["samples"] - before["samples"]) / after["samples_per_second"]
            if least > 1.01 * took + JITTER:
                defects.append(f"{took:.2f} s {between}, but {least:.2f} s by samples_per_second")
    for step, about in saved.items():
        for report in reports:
            early, late = (report, about) if report["step"] <= step else (about, report)
            same = report["step"] != step or report["samples"] == about["samples"]
            if early["seconds"] > late["seconds"] + 1e-3 or not same:
                defects.append(f"the report of step {report['step']} contradicts checkpoint {step}")
    return defects

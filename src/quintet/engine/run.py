"""Run: the state of a training run, and what the loop asks of it."""

import contextlib
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from quintet.engine import building, evaluate, health, preflight, rollback, skipped
from quintet.engine.config import Recipe
from quintet.engine.data.stream import Fixed
from quintet.engine.errors import RunError, Stopped
from quintet.engine.evaluate import EvaluationFailed, Judged, Outside
from quintet.engine.machine.capture import RECOMPUTED, REFUSED, Capture
from quintet.engine.machine.compiling import Compiler
from quintet.engine.machine.signals import FLAT, REASON, REMEDY, STATUS, Signals
from quintet.engine.machine.world import World
from quintet.engine.meters import Meters, Stopwatch, order_of
from quintet.engine.reporter import Reporter
from quintet.engine.rollback import Rollbacks
from quintet.engine.runs import requests
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.saver import Saver
from quintet.engine.runs.sinks import Sink
from quintet.engine.skipped import SkippedUpdates
from quintet.engine.task import Batch, StepContext, StepScalars, Task
from quintet.engine.when import When
from quintet.files import reading_once
from quintet.suggest import command


class Run:
    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        folder: RunFolder,
        sinks: Sequence[Sink] = (),
        signals: Signals | None = None,
        outside: Outside | None = None,
    ):
        self.task, self.recipe, self.world, self.folder = task, recipe, world, folder
        self.signals = signals or Signals(recipe.minutes)
        self.outside = outside
        self.step = 0
        self.clock = Stopwatch()
        captures = world.captures and task.capturable
        self.recomputed = captures and world.recomputes
        """Whether its steps are not captured for this reason alone."""
        world.captures = captures and not world.recomputes
        self.parts = building.parts(task, recipe, world)
        task.prepare(world)
        with reading_once():
            self.stream = building.stream(task, recipe, world)
            self.fixed = building.held_out(task, recipe, world)
        monitors = [*health.default_monitors(list(self.parts), recipe.workers), *task.monitors]
        self.reporter = Reporter(sinks if world.is_main else [], monitors)
        self.meters = Meters(world)
        self.step_scalars = StepScalars(world.device) if world.device.type == "cuda" else None
        forget = self.parts.forget_gradients
        self.capture = Capture(task, self.meters, forget, self.say) if world.captures else None
        self.compiler = Compiler(task, recipe, world, folder, self.capture, self.say)
        self.saver = Saver(folder, recipe, world)
        self.skipped = SkippedUpdates(self.parts, recipe.max_skipped)
        self.rollbacks = Rollbacks(self.saver)
        self.checked = False
        self.flat = 0
        """Evaluations in a row without a new best."""
        self.requests: list[str] = []
        """What was asked from outside, the same on all processes."""
        self.evaluated_step: int | None = None
        if recipe.stop_when_flat and (self.fixed is None or task.best is None):
            raise RunError("stop_when_flat needs validation data and a metric; set it to 0")

    # -- what the loop calls ----------------------------------------------------------------

    def due(self, every: int) -> bool:
        """Every so many steps, and always at the last one."""
        return When(every).due(self.step) or self.step == self.recipe.steps

    def begin(self, batches: Sequence[Batch]) -> StepContext:
        if not self.checked:
            self.checked = True
            try:
                self.task.check(batches[0].data)
            except ValueError as error:
                raise RunError(f"the first batch does not fit the model: {error}") from None
        samples = self.stream.step_requests
        self.meters.begin(self.step, [request.sample for request in samples])
        none = torch.zeros((), device=self.world.device)
        context = StepContext(self.step, self.recipe.seed, len(samples), self.world, none)
        if self.step_scalars is not None:
            self.step_scalars.set(self.step)
            context.step_scalars = self.step_scalars
        if self.capture is not None:
            context.whens = self.capture.whens
        return context

    def report(self) -> None:
        asked, dropped = requests.take(self.folder) if self.world.is_main else ([], "")
        if dropped:
            self.say(dropped)
        code = requests.to_code(asked)
        counts = {"damaged": len(self.stream.damaged), "replaced": 0, "asked": code}
        for loader in (self.stream, self.fixed):
            if loader is not None:
                counts["replaced"] += loader.replaced
                loader.replaced = 0
        noted = {n: torch.tensor(float(c), device=self.world.device) for n, c in counts.items()}
        self.meters.add(self.step, "data", noted)
        means, table = self.meters.read()
        replaced = means.pop("data/replaced")  # of this machine, and not of the run
        self.requests += requests.from_code(int(means.pop("data/asked")))
        record: dict[str, Any] = {
            "step": self.step,
            "samples": self.stream.position,
            "epoch": round(self.stream.epoch, 4),
            "seconds": round(self.clock.seconds(), 3),
            "order": order_of(self.meters.ids),
            **means,
            **{
                f"{name}/learning_rate": part.learning_rate_at(self.step - 1)
                for name, part in self.parts.items()
                if self.step > part.start
            },
            **self.meters.timing(self.stream.waited),
        }
        self.stream.waited = 0.0
        self.reporter.record(record)
        if means["data/damaged"]:  # summed over processes: all of them come here, or none
            self._name_damaged()
        if replaced:
            self.say(f"data workers died and were replaced, {replaced:.0f} times")
        failure = self.skipped.add(table, self.meters.ids, self.say)
        if failure is not None:
            self.rollbacks.fail(failure)
        self.meters.ids.clear()
        self.saver.writer.check()
        if self.folder.uploader is not None:
            for sentence in self.folder.uploader.reported():
                self.say(sentence)

    def evaluate(self, counts: bool = True) -> dict[str, float]:
        """Averaged and live weights on the held-out set, and exhibits from the averaged ones. One
        that does not count is no candidate for the best, and so changes nothing of the run."""
        if self.fixed is None or self.rollbacks.failure:
            return {}
        bad = ", ".join(f"'{name}'" for name in self.parts.nonfinite(self.world))
        if bad:  # sampling from such weights could fail in many ways
            self.say(f"health: {bad} has weights that are not finite; evaluation is skipped")
            return {}
        begun = time.perf_counter()
        judged = Judged({}, {})
        show = partial(self._show, self.fixed, judged) if self.world.is_main else None
        try:
            measure = partial(
                evaluate.measure_parts, self.task, self.parts, self.fixed, self.world, show
            )
            metrics, live = measure() if self.capture is None else self.capture.beside(measure)
        except EvaluationFailed as failure:
            self.save()
            self.finish()
            self.say(f"the evaluation at step {self.step} failed, the state is saved: {failure}")
            raise failure.reason  # noqa: B904 - it has a cause of its own
        metrics |= judged.metrics
        ratios = {n: part.update_ratio(self.step - 1) for n, part in self.parts.items()}
        record = {
            "step": self.step,
            **{f"val/{name}": value for name, value in metrics.items()},
            **{f"val_live/{name}": value for name, value in live.items()},
            **{f"{n}/update_ratio": ratio for n, ratio in ratios.items() if ratio is not None},
            **({"receipts": judged.receipts} if judged.receipts else {}),
        }
        self.reporter.record(record)
        self.evaluated_step = self.step
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                self.say(f"health: {name} is not finite: inspect the validation samples")
        poor = health.below_baselines(metrics, self.task.best)
        if poor and self.step == self.recipe.steps:
            self.say(f"health: {poor}")
        self.reporter.name_damaged(self.step, "valid", self.fixed, self.world)
        if counts:
            self.saver.note_best(metrics, self.task.best)
            self.flat = 0 if self.saver.is_best else self.flat + 1
        self.meters.clock += time.perf_counter() - begun  # throughput is of training alone
        return metrics

    def save(self) -> None:
        if self.skipped.too_many(self.meters.entries):
            self.report()  # raises, or asks for a rollback
        if self.rollbacks.failure:
            return
        about = {
            "samples": self.stream.position,
            "rollbacks": self.rollbacks.past,
            "flat": self.flat,
            "learning_rates": self.parts.learning_rates(),
            "seconds": self.clock.seconds(),
            **self.skipped.state(self.meters.entries),
        }
        self.saver.save(self.step, self.parts.state(), about)

    def answer_requests(self) -> None:
        """Carry out what was asked for at the last report, unless this step did it anyway."""
        asked, self.requests = self.requests, []
        if asked:
            self.say(f"requested: {', '.join(asked)}")
        if "evaluate" in asked and self.evaluated_step != self.step:
            if self.fixed is None:
                self.say("nothing was evaluated: the run has no validation data")
            self.evaluate(counts=False)
        if "save" in asked and self.saver.saved_step != self.step:
            self.save()
        if "stop" in asked:
            self.signals.ask()

    def stop_if_asked(self) -> None:
        code = self.world.agree(self.signals.asked())
        if not code and 0 < self.recipe.stop_when_flat <= self.flat:
            code = FLAT
        if not code or self.step >= self.recipe.steps:
            return
        if self.saver.saved_step != self.step:
            self.save()
            self.go_back_if_failed()
        missing = self.finish(code)  # together: a launcher kills the rest
        raise Stopped(
            f"stopped at step {self.step} by {REASON[code]}; the state is saved. {missing}"
            f"Resume with: {command('resume', self.folder.path, *REMEDY.get(code, ()))}",
            STATUS[code],
        )

    def go_back_if_failed(self) -> None:
        """Restore the last intact checkpoint on all processes and continue with a new data order,
        so that the same batch does not recur."""
        failure = self.rollbacks.failure
        if failure is None:
            return
        step, seconds = self.rollbacks.target(failure), self.clock.seconds()
        earlier, last = self.rollbacks.past, self.step
        self.restore(step)
        latest = {"from": last, "to": step, "samples": self.stream.position}
        sentence = self.rollbacks.settle(failure, [*earlier, latest])
        self._shift_data()
        self.clock.restart(seconds)
        self.say(sentence)

    def finish(self, code: int = 0) -> str:
        """Wait until the last checkpoint is written and, within limits, uploaded. What is not is an
        error at the end of the run; after a stop, whose code this is, a sentence."""
        self.saver.writer.wait()
        uploader = self.folder.uploader
        hurry = lambda: code not in (0, FLAT) or self.signals.asked()
        missing = uploader.finish(hurry) if uploader else ""
        self.world.barrier()
        if missing and not code:
            raise RunError(missing)
        return missing and f"{missing}. "

    def close(self) -> None:
        self.stream.close()
        if self.fixed:
            self.fixed.close()
        with contextlib.suppress(RuntimeError):  # another process is gone: nothing to agree on
            self.world.settle()
        self.saver.writer.close()
        self.reporter.close()
        self.folder.unlock()

    # -- state ------------------------------------------------------------------------------

    def restore_latest(self) -> None:
        """Resume from the newest intact checkpoint, or start at step 0."""
        parts, recipe, path = self.parts, self.recipe, self.folder.path
        step = self.saver.newest(self.say)
        about = self.restore(step) if step is not None else {}
        data = (self.stream, self.fixed)
        verb = "starting" if step is None else "resuming"
        greeting = preflight.greeting(parts, *data, self.world, self.saver.global_batch)
        self.say(f"{verb} at step {self.step}; {greeting}")
        if self.recomputed:
            self.say(f"{REFUSED}{RECOMPUTED}")
        for sentence in preflight.changed_rates(parts, recipe, about, self.step, path):
            self.say(sentence)
        for sentence in preflight.never_flat(recipe):
            self.say(sentence)
        for sentence in preflight.changed_machine(about, self.world):
            self.say(sentence)
        settle = partial(preflight.settle_data, path, *data, recipe, self.say)
        self.saver.held_out = self.world.on_main(settle, expected=(OSError,))
        if self.fixed is not None and self.step < recipe.steps:
            # An evaluation of unreadable data would fail after many steps.
            self.world.on_main(self.fixed.require_readable)

    def restore(self, step: int) -> dict[str, Any]:
        """Take over a checkpoint; returns its state.json."""
        about, files, position = self.saver.read(step, self.parts.state())
        if self.capture is not None:
            self.capture.drop()
        self.parts.load(files)
        self.step, samples, self.clock.before = position
        self.flat = int(about.get("flat", 0))
        skips, self.rollbacks.past = rollback.read_history(about, self.folder.checkpoints)
        self.skipped.load(skips, skipped.read(about))
        self._shift_data()
        self.stream.seek(samples)
        return about

    def _shift_data(self) -> None:
        size = self.stream.samples.size
        self.stream.shift = rollback.position_shift(self.rollbacks.past, size)

    # -- watching ---------------------------------------------------------------------------

    def say(self, message: str) -> None:
        self.reporter.event(self.step, message)

    def _name_damaged(self) -> None:
        self.reporter.name_damaged(self.step, "train", self.stream, self.world)
        size, count = self.stream.samples.size, len(self.reporter.damaged["train"])
        if count > self.recipe.max_damaged * size:
            raise RunError(
                f"{count} of {size} samples could not be read, more than "
                f"max_damaged = {self.recipe.max_damaged:.0%}{self._listing_damaged()}"
            )

    def _listing_damaged(self) -> str:
        """The command that lists the unreadable files of a folder; Python data has none."""
        room, _, _ = str(self.folder.about.get("recipe") or "").partition("/")
        data = self.recipe.data
        if not room or data is None or data.startswith("python:"):
            return ""
        return f"; {command('doctor', room, data)} lists them"

    def exhibit(self, batch: Batch) -> None:
        exhibits = self.task.exhibit(self.parts.nets, batch)
        self.reporter.exhibit(self.step, self.folder.exhibits, exhibits)

    def _show(self, fixed: Fixed, judged: Judged, batch: Batch) -> None:
        self.exhibit(batch)
        if self.outside is not None:
            with torch.autocast(self.world.device.type, enabled=False):
                outcome = self.outside(self.parts.nets, fixed.samples.source, self.world)
            judged.metrics.update(outcome.metrics)
            judged.receipts.update(outcome.receipts)
            metrics = outcome.metrics.items()
            values = (f"{name.removeprefix('judge/')} {value:.4g}" for name, value in metrics)
            self.say(f"judged: {', '.join(values)}")

"""Run: the state of a training run, and what the loop asks of it."""

import contextlib
import platform
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch

from quintet.engine import building, evaluate, health, rollback, skipped
from quintet.engine.config import Recipe, to_json
from quintet.engine.data import record
from quintet.engine.data.source import Source
from quintet.engine.data.stream import Fixed, Stream
from quintet.engine.errors import RunError, Stopped
from quintet.engine.evaluate import EvaluationFailed
from quintet.engine.machine.capture import Capture
from quintet.engine.machine.compiling import Compiler
from quintet.engine.machine.signals import FLAT, REASON, STATUS, Signals
from quintet.engine.machine.world import World
from quintet.engine.meters import Meters, order_of
from quintet.engine.part import LivePart
from quintet.engine.reporter import Reporter
from quintet.engine.runs.folder import RunFolder
from quintet.engine.runs.saver import Saver
from quintet.engine.runs.sinks import Sink
from quintet.engine.task import Batch, StepContext, StepScalars, Task
from quintet.engine.when import When
from quintet.files import reading_once
from quintet.version import __version__


class Judged(NamedTuple):
    """What outside judges say at one evaluation."""

    metrics: dict[str, float]
    receipts: dict[str, Any]
    """By judge: what its number is a number of."""


Outside = Callable[[Mapping[str, Any], Source, World], Judged]
"""Outside judges, of networks and validation samples."""


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
        self.seconds = 0.0
        self.began = time.monotonic()
        world.captures = world.captures and task.capturable
        self.parts, self.frozen = building.parts(task, recipe, world)
        self.focus: LivePart | None = None
        task.prepare(world)
        with reading_once():
            self.stream = building.stream(task, recipe, world)
            self.fixed = building.held_out(task, recipe, world)
        self.meters = Meters(world)
        self.step_scalars = StepScalars(world.device) if world.device.type == "cuda" else None
        self.capture = Capture(self) if world.captures else None
        self.compiler = Compiler(self)
        monitors = [*health.default_monitors(list(self.parts), recipe.workers), *task.monitors]
        self.reporter = Reporter(sinks if world.is_main else [], monitors)
        self.saver = Saver(folder, recipe, world)
        self.skips = dict.fromkeys(self.parts, 0)
        self.updates: skipped.Counts = dict.fromkeys(self.parts, skipped.Count())
        self.rollbacks: list[dict[str, int]] = []
        self.failed: rollback.Failure | None = None
        self.checked = False
        self.flat = 0
        """Evaluations in a row without a new best."""
        if recipe.stop_when_flat and (self.fixed is None or task.best is None):
            raise RunError("stop_when_flat needs validation data and a metric; set it to 0")

    # -- what the loop calls ----------------------------------------------------------------

    def due(self, when: When) -> bool:
        """As `when` says, and always at the last step."""
        return when.due(self.step) or self.step == self.recipe.steps

    def begin(self, batches: Sequence[Batch]) -> StepContext:
        if not self.checked:
            self.checked = True
            try:
                self.task.check(batches[0].data)
            except ValueError as error:
                raise RunError(f"the first batch does not fit the model: {error}") from None
        requests = self.stream.step_requests
        self.meters.begin(self.step, [request.sample for request in requests], len(requests))
        none = torch.zeros((), device=self.world.device)
        context = StepContext(self.step, self.recipe.seed, len(requests), self.world, none)
        if self.step_scalars is not None:
            self.step_scalars.set(self.step)
            context.step_scalars = self.step_scalars
        if self.capture is not None:
            context.whens = self.capture.whens
        return context

    def guard_data(self, batches: Sequence[Batch]) -> None:
        """Not-a-number in the data makes every loss of the step one."""
        poison = torch.zeros((), device=self.world.device) + health.nan_in_data(batches)
        for part in self.parts.values():
            part.loss = poison

    def only(self, live: LivePart) -> Mapping[str, Any]:
        """One part live: wrapped and training. The others bare, frozen and in eval."""
        if self.focus is not live:
            for part in self.parts.values():
                part.focus(part is live)
            self.focus = live
        bare = {name: part.module for name, part in self.parts.items()}
        return {**self.frozen, **bare, live.name: live.handle}

    def report(self) -> None:
        counts = {"damaged": len(self.stream.damaged), "replaced": self._replaced()}
        noted = {n: torch.tensor(float(c), device=self.world.device) for n, c in counts.items()}
        self.meters.add(self.step, "data", noted)
        means, table = self.meters.read()
        replaced = means.pop("data/replaced")  # of this machine, and not of the run
        record: dict[str, Any] = {
            "step": self.step,
            "samples": self.stream.position,
            "epoch": round(self.stream.epoch, 4),
            "seconds": round(self.elapsed(), 3),
            "order": order_of(self.meters.ids),
            **means,
            **{
                f"{name}/learning_rate": part.learning_rate_at(self.step - 1)
                for name, part in self.parts.items()
                if self.step > part.start
            },
            **self._timing(),
        }
        self.reporter.record(record)
        self._name_damaged(means["data/damaged"])
        if replaced:
            self.say(f"data workers died and were replaced, {replaced:.0f} times")
        rollback.guard(self, table)
        self.meters.ids.clear()
        self.saver.check()

    def evaluate(self) -> dict[str, float]:
        """Averaged and live weights on the held-out set, and exhibits from the averaged ones."""
        if self.fixed is None or self.failed or health.has_nonfinite_weights(self):
            return {}
        begun = time.perf_counter()
        nets = {**self.frozen, **{name: part.module for name, part in self.parts.items()}}
        parts = list(self.parts.values())
        sides = [partial(evaluate.eval_mode, parts, averaged) for averaged in (True, False)]
        judged = Judged({}, {})
        show = partial(self._show, nets, judged) if self.world.is_main else None
        measured = (self.task, nets, self.fixed, self.world, show)
        try:
            if self.world.shards:
                metrics, live = evaluate.measure_sharded(parts, *measured)
            else:
                metrics, live = evaluate.measure_in_contexts(sides, *measured)
        except EvaluationFailed as failure:
            self._keep_after(failure)
        metrics |= judged.metrics
        last = self.step - 1
        ratios = {f"{n}/update_ratio": part.update_ratio(last) for n, part in self.parts.items()}
        record = {
            "step": self.step,
            **{f"val/{name}": value for name, value in metrics.items()},
            **{f"val_live/{name}": value for name, value in live.items()},
            **{name: value for name, value in ratios.items() if value is not None},
            **({"receipts": judged.receipts} if judged.receipts else {}),
        }
        self.reporter.record(record)
        for message in health.nonfinite_metrics(record):
            self.say(message)
        self._name(self.fixed, "valid")
        self.saver.note_best(metrics, self.task.best)
        self.flat = 0 if self.saver.is_best else self.flat + 1
        self.meters.clock += time.perf_counter() - begun  # throughput is of training alone
        return metrics

    def _keep_after(self, failure: EvaluationFailed) -> NoReturn:
        """Save the steps that were taken, and fail as the evaluation did."""
        self.save()
        self.finish()
        self.say(f"the evaluation at step {self.step} failed, the state is saved: {failure}")
        raise failure.reason

    def save(self) -> None:
        streaks = rollback.skip_streaks(self.skips, self.meters.entries)
        if max(max(counts.values()) for counts in streaks) >= self.recipe.max_skipped:
            self.report()  # raises, or marks the run for rollback
        if self.failed:
            return
        flags = skipped.in_entries(self.parts, self.meters.entries)
        counts = {"skips": streaks[-1], "updates": skipped.added(self.updates, flags)}
        self.saver.save(self.step, self._state(), {**self._about(), **counts})

    def _state(self) -> dict[str, Any]:
        """Tensors by name, by file."""
        return {name: held for part in self.parts.values() for name, held in part.state().items()}

    def stop_if_asked(self) -> None:
        code = self.world.agree(self.signals.asked())
        if not code and 0 < self.recipe.stop_when_flat <= self.flat:
            code = FLAT
        if not code or self.step >= self.recipe.steps:
            return
        if self.saver.saved_step != self.step:
            self.save()
            self.go_back_if_failed()
        self.finish()  # together: a launcher kills the rest once one process is gone
        raise Stopped(
            f"stopped at step {self.step} by {REASON[code]}; the state is saved. "
            f"Resume with: quintet resume {shlex.quote(str(self.folder.path))}",
            STATUS[code],
        )

    def go_back_if_failed(self) -> None:
        if self.failed:
            rollback.roll_back(self, self.failed)

    def finish(self) -> None:
        self.saver.wait()
        self.world.barrier()

    def close(self) -> None:
        self.stream.close()
        if self.fixed:
            self.fixed.close()
        with contextlib.suppress(RuntimeError):  # another process is gone: nothing to agree on
            self.world.close()
        self.saver.close()
        self.reporter.close()
        self.folder.unlock()

    # -- state ------------------------------------------------------------------------------

    def restore_latest(self) -> None:
        """Resume from the newest intact checkpoint, or start at step 0."""
        step = self.saver.newest(self.say)
        about = self.restore(step) if step is not None else {}
        self.say(self._greeting("starting" if step is None else "resuming"))
        self._name_changed_rates(about)
        self._check_schedule(about.get("settings", {}).get("schedule_steps"))
        self.saver.held_out = self.world.on_main(self._settle_data, expected=(OSError,))
        self._check_held_out()

    def _name_changed_rates(self, about: Mapping[str, Any]) -> None:
        before = about.get("learning_rates")
        for name, rate in self._learning_rates().items():
            old = before.get(name, rate) if isinstance(before, Mapping) else rate
            if old != rate:
                change = f"changed from {old} to {rate} at step {self.step}"
                self.say(f"learning rate of '{name}' {change}")

    def _learning_rates(self) -> dict[str, float]:
        return {name: part.config.learning_rate for name, part in self.parts.items()}

    def _settle_data(self) -> str:
        """The files are those of the last start, or the user has accepted others; returns the
        digest of the validation data."""
        sources = {"train": self.stream.samples.source}
        sources |= {"valid": self.fixed.samples.source} if self.fixed else {}
        now = {split: record.record_of(sources.get(split)) for split in record.SPLITS}
        record.settle(self.folder.path, now, self.recipe.accept_changed_data, self.say)
        return now["valid"].digest

    def _check_held_out(self) -> None:
        """Before the first step: an evaluation of unreadable data would fail after many."""
        if self.fixed is not None and self.step < self.recipe.steps:
            self.world.on_main(self.fixed.require_readable)

    def _check_schedule(self, before: int | None) -> None:
        """Refuse a run that would not learn; name the rates of one whose schedule has changed."""
        if self.step >= self.recipe.steps:
            return
        length = self.recipe.schedule_steps
        rates = {part.name: part.learning_rate_at(self.step) for part in self.parts.values()}
        if not any(rates.values()):
            raise RunError(
                f"{self.folder.path} is at step {self.step}, past the end of its learning-rate "
                f"schedule of {length} steps: the rate would be 0. Stretch the schedule with "
                f"--schedule-steps {self.recipe.steps}"
            )
        if before not in (None, length):
            listed = ", ".join(f"'{name}' {rate:.3g}" for name, rate in rates.items())
            self.say(
                f"the learning-rate schedule is {length} steps long instead of {before}; "
                f"the rate at step {self.step} is {listed}"
            )

    def _greeting(self, verb: str) -> str:
        counts = ", ".join(
            f"{name} {sum(p.numel() for p in part.parameters.values()) / 1e6:.2f} M"
            for name, part in self.parts.items()
        )
        count = self.fixed.samples.size if self.fixed else 0
        held_out = f"{count} held out for validation" if count else "none for validation"
        return (
            f"{verb} at step {self.step}; {self.world.size} process(es) on "
            f"{self.world.device.type}, {self.world.precision}; "
            f"global batch {self.saver.global_batch} from {self.stream.samples.size} samples, "
            f"{held_out}; parameters: {counts}"
        )

    def restore(self, step: int) -> dict[str, Any]:
        """Take over a checkpoint; returns its state.json."""
        about, files, at = self.saver.read(step, self._state())
        if self.capture is not None:
            self.capture.drop()
        for part in self.parts.values():
            part.load(files)
        self.step, self.seconds = at.step, at.seconds
        self.flat = int(about.get("flat", 0))
        skips, self.rollbacks = rollback.read_history(about, self.folder.checkpoints)
        self.skips = {name: skips.get(name, 0) for name in self.parts}
        updates = skipped.read(about)
        self.updates = {name: updates.get(name, skipped.Count()) for name in self.parts}
        self.stream.shift = rollback.position_shift(self.rollbacks, self.stream.samples.size)
        self.stream.seek(at.samples)
        return about

    def _about(self) -> dict[str, Any]:
        return {
            "run": self.folder.id,
            "samples": self.stream.position,
            "rollbacks": self.rollbacks,
            "flat": self.flat,
            "seed": self.recipe.seed,
            "settings": to_json(self.recipe),
            "learning_rates": self._learning_rates(),
            "global_batch": self.saver.global_batch,
            "seconds": self.elapsed(),
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "precision": self.world.precision,
            "device": str(self.world.device.type),
            "versions": {
                "quintet": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.began

    # -- watching ---------------------------------------------------------------------------

    def say(self, message: str) -> None:
        self.reporter.event(self.step, message)

    def _timing(self) -> dict[str, float]:
        self.meters.waited, self.stream.waited = self.stream.waited, 0.0
        return self.meters.timing()

    def _name_damaged(self, seen: float) -> None:
        """`seen` was summed over processes, so that all of them come here or none does."""
        if not seen:
            return
        self._name(self.stream, "train")
        size, count = self.stream.samples.size, len(self.reporter.damaged["train"])
        if count > self.recipe.max_damaged * size:
            raise RunError(
                f"{count} of {size} samples could not be read, more than "
                f"max_damaged = {self.recipe.max_damaged:.0%}; 'quintet doctor' lists them"
            )

    def _replaced(self) -> int:
        """Workers of this process that died since the last report."""
        loaders = [self.stream, *([self.fixed] if self.fixed else [])]
        count = sum(loader.replaced for loader in loaders)
        for loader in loaders:
            loader.replaced = 0
        return count

    def _name(self, loader: Stream | Fixed, split: str) -> None:
        notes = self.world.gather_objects(loader.damaged)
        self.reporter.name_damaged(self.step, split, notes)
        loader.damaged.clear()

    def _exhibit(self, nets: Mapping[str, Any], batch: Batch) -> None:
        self.reporter.exhibit(self.step, self.folder.exhibits, self.task.exhibit(nets, batch))

    def _show(self, nets: Mapping[str, Any], judged: Judged, batch: Batch) -> None:
        self._exhibit(nets, batch)
        if self.outside is not None and self.fixed is not None:
            with torch.autocast(self.world.device.type, enabled=False):
                outcome = self.outside(nets, self.fixed.samples.source, self.world)
            judged.metrics.update(outcome.metrics)
            judged.receipts.update(outcome.receipts)
            metrics = outcome.metrics.items()
            values = (f"{name.removeprefix('judge/')} {value:.4g}" for name, value in metrics)
            self.say(f"judged: {', '.join(values)}")

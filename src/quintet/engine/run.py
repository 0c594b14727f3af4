"""Run: the state of a training run, and what the loop asks of it."""

import contextlib
import math
import platform
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from quintet.engine import building, evaluate, health, rollback
from quintet.engine.config import Recipe, to_json
from quintet.engine.data.stream import Damaged
from quintet.engine.errors import RunError, Stopped
from quintet.engine.keys import fold
from quintet.engine.machine.signals import REASON, STATUS, Signals
from quintet.engine.machine.world import World
from quintet.engine.meters import Meters
from quintet.engine.part import LivePart
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder, require_settings
from quintet.engine.runs.sinks import Sink
from quintet.engine.task import Batch, StepContext, Task
from quintet.engine.when import When
from quintet.files import remove_partial
from quintet.version import __version__


class Run:
    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        folder: RunFolder,
        sinks: Sequence[Sink] = (),
        signals: Signals | None = None,
    ):
        self.task, self.recipe, self.world, self.folder = task, recipe, world, folder
        self.sinks = list(sinks) if world.is_main else []
        self.signals = signals or Signals(recipe.minutes)
        self.step = 0
        self.saved_step: int | None = None
        self.best: dict[str, Any] | None = None
        self.is_best = False
        self.seconds = 0.0
        self.began = time.monotonic()
        self.parts, self.frozen = building.parts(task, recipe, world)
        self.focus: LivePart | None = None
        task.prepare(world)
        self.stream = building.stream(task, recipe, world)
        self.fixed = building.held_out(task, recipe, world)
        self.meters = Meters(world)
        self.monitors = [*health.default_monitors(list(self.parts)), *task.monitors]
        self.skips = dict.fromkeys(self.parts, 0)
        self.rollbacks: list[dict[str, int]] = []
        self.failed: rollback.Failure | None = None
        self.damaged: dict[str, set[int]] = {"train": set(), "valid": set()}
        self.writer = checkpoint.Writer() if world.is_main else None
        self.checked = False

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
        poison = none + health.nan_in_data(batches)
        for part in self.parts.values():
            part.loss = poison
        return StepContext(self.step, self.recipe.seed, len(requests), self.world, none)

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
            "order": f"{fold(*(i for ids in self.meters.ids.values() for i in ids)):016x}",
            **means,
            **{
                f"{name}/learning_rate": part.learning_rate
                for name, part in self.parts.items()
                if self.step > part.start
            },
            **self._timing(),
        }
        for sink in self.sinks:
            sink.report(record)
        self._watch(record)
        self._name_damage(means["data/damaged"])
        if replaced:
            self.say(f"data workers died and were replaced, {replaced:.0f} times")
        rollback.guard(self, table)
        self.meters.ids.clear()
        if self.writer:
            self.writer.check()

    def evaluate(self) -> dict[str, float]:
        """Averaged and live weights on the held-out set, and exhibits from the averaged ones."""
        if self.fixed is None or self.failed or health.has_nonfinite_weights(self):
            return {}
        begun = time.perf_counter()
        nets = {**self.frozen, **{name: part.module for name, part in self.parts.items()}}
        parts = list(self.parts.values())
        sides = [partial(evaluate.eval_mode, parts, averaged) for averaged in (True, False)]
        show = partial(self._exhibit, nets) if self.world.is_main else None
        measured = (self.task, nets, self.fixed, self.world, show)
        if self.world.shards:
            metrics, live = evaluate.measure_sharded(parts, *measured)
        else:
            metrics, live = evaluate.measure_in_contexts(sides, *measured)
        ratios = {f"{name}/update_ratio": part.update_ratio() for name, part in self.parts.items()}
        record = {
            "step": self.step,
            **{f"val/{name}": value for name, value in metrics.items()},
            **{f"val_live/{name}": value for name, value in live.items()},
            **{name: value for name, value in ratios.items() if value is not None},
        }
        for sink in self.sinks:
            sink.report(record)
        self._watch(record)
        for message in health.nonfinite_metrics(record):
            self.say(message)
        self._name(self.fixed.damaged, "valid")
        self._note_best(metrics)
        self.meters.clock += time.perf_counter() - begun  # throughput is of training alone
        return metrics

    def save(self) -> None:
        """Copy the state; a background thread of the main process writes it."""
        streaks = rollback.skip_streaks(self.skips, self.meters.entries)
        if max(max(counts.values()) for counts in streaks) >= self.recipe.max_skipped:
            self.report()  # it says so and ends here, or sees to it that the run goes back
        if self.failed:
            return
        step, best = self.step, self.best if self.is_best else None
        self.is_best, self.saved_step = False, step
        files: dict[str, Any] = {}
        for part in self.parts.values():
            files |= part.state()
        if self.writer is None:
            checkpoint.snapshot(files, keep=False)
            return
        writer, about = self.writer, {**self._about(), "skips": streaks[-1]}
        spare, writer.spare = writer.spare, None
        copied = checkpoint.snapshot(files, spare)

        def job() -> None:
            checkpoint.write(self.folder.checkpoints, step, copied, about)
            writer.spare = copied
            if best is not None:
                self.folder.write_best(step, best["metric"], best["value"])
            if any(streaks[-1].values()):
                return  # the last intact one must stay
            kept = self.folder.best()
            checkpoint.retain(
                self.folder.checkpoints,
                self.recipe.keep_last,
                self.recipe.keep_every,
                kept["step"] if kept else None,
                self.folder.id,
                newest=step,
            )

        writer.submit(job)

    def stop_if_asked(self) -> None:
        code = self.world.agree(self.signals.asked())
        if not code or self.step >= self.recipe.steps:
            return
        if self.saved_step != self.step:
            self.save()
            self.go_back_if_failed()
        self.finish()  # together: a launcher kills the rest once one process is gone
        raise Stopped(
            f"stopped at step {self.step} by {REASON[code]}; the state is saved. "
            f"Resume with: quintet resume {self.folder.path}",
            STATUS[code],
        )

    def go_back_if_failed(self) -> None:
        if self.failed:
            rollback.roll_back(self, self.failed)

    def finish(self) -> None:
        if self.writer:
            self.writer.wait()
        self.world.barrier()

    def close(self) -> None:
        self.stream.close()
        if self.fixed:
            self.fixed.close()
        with contextlib.suppress(RuntimeError):  # another process is gone: nothing to agree on
            self.world.close()
        if self.writer:
            self.writer.close()
        for sink in self.sinks:
            sink.close()
        self.folder.unlock()

    # -- state ------------------------------------------------------------------------------

    def restore_latest(self) -> None:
        """Resume from the newest intact checkpoint, or start at step 0."""
        step = problem = None
        if self.world.is_main:
            remove_partial(self.folder.checkpoints)
            try:
                step = checkpoint.newest_intact(self.folder.checkpoints, self.say)
                self.folder.forget_after(step or 0)
            except RunError as error:
                problem = str(error)
        step, problem = self.world.from_main((step, problem))
        if problem:
            raise RunError(problem)
        if step is not None:
            self.restore(step)
        self.say(self._greeting("starting" if step is None else "resuming"))

    def _greeting(self, verb: str) -> str:
        counts = ", ".join(
            f"{name} {sum(p.numel() for p in part.parameters.values()) / 1e6:.2f} M"
            for name, part in self.parts.items()
        )
        return (
            f"{verb} at step {self.step}; {self.world.size} process(es) on "
            f"{self.world.device.type}, {self.world.precision}; global batch {self.global_batch} "
            f"from {self.stream.samples.size} samples; parameters: {counts}"
        )

    def restore(self, step: int) -> None:
        path = checkpoint.path_of(self.folder.checkpoints, step)
        about, files = checkpoint.read_about(path), checkpoint.read(path)
        if about.get("run") != self.folder.id:
            raise RunError(f"{path} belongs to another run ({about.get('run')})")
        if about.get("seed") != self.recipe.seed:
            raise RunError(
                f"{path} was written with seed {about.get('seed')}, but config.json says "
                f"{self.recipe.seed}; put the seed back"
            )
        wanted = {n: held for part in self.parts.values() for n, held in part.state().items()}
        if set(wanted) != set(files):
            raise RunError(
                f"{path} holds {sorted(files)}, but this task has {sorted(wanted)}: "
                "it was written by another recipe"
            )
        require_settings(path, about, self.recipe, self.global_batch)
        checkpoint.require_forms(path, files, wanted)
        at = checkpoint.position(path, about)
        for part in self.parts.values():
            part.load(files)
        self.step = self.saved_step = at.step
        self.seconds = at.seconds
        skips, self.rollbacks = rollback.read_history(about, path)
        self.skips = {name: skips.get(name, 0) for name in self.parts}
        self.stream.shift = rollback.position_shift(self.rollbacks, self.stream.samples.size)
        self.stream.seek(at.samples)

    @property
    def global_batch(self) -> int:
        return self.recipe.batch_size * self.recipe.accumulate * self.world.size

    def _about(self) -> dict[str, Any]:
        return {
            "run": self.folder.id,
            "samples": self.stream.position,
            "rollbacks": self.rollbacks,
            "seed": self.recipe.seed,
            "settings": to_json(self.recipe),
            "global_batch": self.global_batch,
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
        for sink in self.sinks:
            sink.event(self.step, message)

    def _timing(self) -> dict[str, float]:
        self.meters.waited, self.stream.waited = self.stream.waited, 0.0
        return self.meters.timing()

    def _watch(self, record: Mapping[str, Any]) -> None:
        for monitor in self.monitors:
            message = monitor(record)
            if message:
                self.say(f"health: {message}")

    def _name_damage(self, seen: float) -> None:
        """`seen` was summed over processes, so that all of them come here or none does."""
        if not seen:
            return
        self._name(self.stream.damaged, "train")
        size, count = self.stream.samples.size, len(self.damaged["train"])
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

    def _name(self, noted: list[Damaged], split: str) -> None:
        """Each damaged sample once, whichever process met it."""
        for note in (note for notes in self.world.gather_objects(noted) for note in notes):
            if note.index not in self.damaged[split]:
                self.damaged[split].add(note.index)
                self.say(f"skipped {note.name}: {note.reason}")
        noted.clear()

    def _note_best(self, metrics: Mapping[str, float]) -> None:
        if self.task.best is None or not math.isfinite(metrics.get(self.task.best[0], math.nan)):
            return
        name, sense = self.task.best
        kept = self.best or self.world.from_main(self.folder.best())
        sign = 1 if sense == "max" else -1
        if kept is None or sign * metrics[name] > sign * kept["value"]:
            self.best, self.is_best = {"metric": name, "value": metrics[name]}, True

    def _exhibit(self, nets: Mapping[str, Any], batch: Batch) -> None:
        folder = self.folder.exhibits / f"step-{self.step:08d}"
        shown = self.task.exhibit(nets, batch)
        if not shown:
            return
        for place in (self.folder.exhibits, folder):
            place.mkdir(exist_ok=True)  # no parents: a run whose folder vanished must stop
        files: list[Path] = [file for exhibit in shown for file in exhibit.write(folder)]
        for sink in self.sinks:
            sink.exhibits(self.step, files)

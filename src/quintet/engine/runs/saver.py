"""Saver: the checkpoints of a run, written in the background, and the best of them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from quintet.engine.config import Recipe, to_json
from quintet.engine.errors import RunError
from quintet.engine.machine import hardware
from quintet.engine.machine.world import World
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder, require_settings
from quintet.files import remove_partial, write_json


class Saver:
    """All processes take part in a save, as shards are gathered; the main process writes."""

    def __init__(self, folder: RunFolder, recipe: Recipe, world: World):
        self.folder, self.recipe, self.world = folder, recipe, world
        self.writer = checkpoint.Writer()
        self.saved_step: int | None = None
        self.held_out = ""
        """Digest of the validation data: a best value on other data cannot be compared."""
        self.best: dict[str, Any] | None = None
        self.is_best = False
        """Whether the current step is the best so far, and not saved yet."""

    @property
    def global_batch(self) -> int:
        return self.recipe.global_batch(self.world.size)

    def note_best(self, metrics: Mapping[str, float], criterion: tuple[str, str] | None) -> None:
        if criterion is None or not math.isfinite(metrics.get(criterion[0], math.nan)):
            return
        name, sense = criterion
        best = self.best or self.world.from_main(self.folder.best())
        sign = 1 if sense == "max" else -1
        if best and best.get("held_out", self.held_out) != self.held_out:
            best = None
        if best is None or sign * metrics[name] > sign * best["value"]:
            self.best = {"metric": name, "value": metrics[name], "held_out": self.held_out}
            self.is_best = True

    def save(self, step: int, files: checkpoint.Files, about: Mapping[str, Any]) -> None:
        """Copy the state; a background thread of the main process writes it. To `about` comes what
        the saver knows."""
        best = self.best if self.is_best else None
        self.is_best, self.saved_step = False, step
        if not self.world.is_main:
            checkpoint.snapshot(files, keep=False)
            return
        writer, spare = self.writer, self.writer.spare
        writer.spare, uploader = None, self.folder.uploader
        copied, about = checkpoint.snapshot(files, spare), {**self._about(), **about}

        prunes = not any(about["skips"].values())

        def job() -> None:
            checkpoint.write(self.folder.checkpoints, step, copied, about)
            writer.spare = copied
            if best is not None:
                write_json(self.folder.path / "best.json", {"step": step, **best})
            if prunes:  # else the last intact one must not give way
                saved = self.folder.best()
                checkpoint.retain(
                    self.folder.checkpoints,
                    self.recipe.keep_last,
                    self.recipe.keep_every,
                    saved["step"] if saved else None,
                    self.folder.id,
                    newest=step,
                    uploading=uploader.uploading if uploader else None,
                )
            if uploader:
                uploader.saved(step, prunes=prunes)

        writer.submit(job)

    def _about(self) -> dict[str, Any]:
        return {
            "run": self.folder.id,
            "seed": self.recipe.seed,
            "settings": to_json(self.recipe),
            "global_batch": self.global_batch,
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "precision": self.world.precision,
            "device": self.world.device.type,
            "machine": hardware.facts(self.world.device)["device"],
            "versions": hardware.versions(self.world.device.type),
        }

    def newest(self, say: Callable[[str], None]) -> int | None:
        """Step of the newest intact checkpoint; reports of later steps are dropped."""

        def search() -> int | None:
            remove_partial(self.folder.checkpoints)
            step = checkpoint.newest_intact(self.folder.checkpoints, say)
            self.folder.forget_after(step or 0)
            return step

        return self.world.on_main(search)

    def read(
        self, step: int, expected: checkpoint.Files
    ) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int, float]]:
        """State, tensors by file and position of a checkpoint that fits this run, or an error."""
        path = checkpoint.path_of(self.folder.checkpoints, step)
        about, files = checkpoint.read_about(path), checkpoint.read(path)
        if about.get("run") != self.folder.id:
            raise RunError(f"{path} belongs to another run ({about.get('run')})")
        if about.get("seed") != self.recipe.seed:
            raise RunError(
                f"{path} was written with seed {about.get('seed')}, but config.json says "
                f"{self.recipe.seed}; put the seed back"
            )
        if set(expected) != set(files):
            raise RunError(
                f"{path} holds {sorted(files)}, but this task has {sorted(expected)}: "
                "it was written by another recipe"
            )
        asked = self.folder.about.get("changed")
        require_settings(path, about, self.recipe, self.global_batch, asked)
        checkpoint.require_forms(path, files, expected)
        position = checkpoint.position(path, about)
        self.saved_step = step
        return about, files, position

"""One process of a run on Ray."""

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray.train
import torch.distributed as dist
from torch.distributed import distributed_c10d

from quintet import rooms
from quintet.cli.train import train_run
from quintet.engine.config import ConfigError, Recipe, from_json
from quintet.engine.errors import RunError, Stopped
from quintet.engine.runs.folder import read_json
from quintet.engine.runs.remote.mirror import folder_of
from quintet.engine.runs.sinks import Sink
from quintet.media.errors import BadFile, Incompatible
from quintet.ray.cluster import seats

PATIENCE = 120.0
"""Seconds to wait for a process that still holds the run; a lease lasts 90."""
FEW = 30.0
"""Seconds that the other processes have to fail alike."""
PAUSE = 0.2
"""Seconds between two looks at the store."""
MAY_PASS = ("another process of this run has ended", "is being trained by")
"""What the messages of passing errors say."""


def work(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train to the end, and return the last metrics."""
    logging.getLogger().setLevel(logging.WARNING)  # Ray would repeat every report
    kind = type(rooms.recipe_function(config["name"])())
    recipe = from_json(kind, config["recipe"])
    reports = Reports(distributed_c10d._get_default_store(), dist.get_rank())
    try:
        wanted = global_batch(recipe, config, reports.store)
        count, recipe = seats(recipe, wanted, dist.get_world_size())
        if reports.rank < count:  # the others wait for the end, or for more of them
            leave_others_idle(reports.store, count)
            _train(config, recipe, reports)
    except (RunError, ConfigError, BadFile, Incompatible) as error:
        if any(text in str(error) for text in MAY_PASS):
            raise  # Ray starts all processes again
        reports.report({"error": str(error)})
        if not reports.finish(FEW):
            raise  # only this process has failed
    reports.finish()
    return reports.news


def global_batch(recipe: Recipe, config: Mapping[str, Any], store: dist.Store) -> int:
    """That of the run, or of as many processes as were asked for; from the first process, as it may
    write config.json now."""
    key = "quintet/global_batch"
    if dist.get_rank() == 0:
        about = folder_of(config["run"]) / "config.json"
        recorded = read_json(about).get("global_batch") if about.is_file() else None
        store.set(key, str(recorded or recipe.global_batch(config["most"])))
    return int(store.get(key))


def leave_others_idle(store: dist.Store, count: int) -> None:
    """Form a new group of the first `count` processes."""
    rank, backend = dist.get_rank(), dist.get_backend()
    if count < dist.get_world_size():
        dist.destroy_process_group()
        os.environ["WORLD_SIZE"] = str(count)
        inner = dist.PrefixStore("quintet/seats", store)
        dist.init_process_group(backend, store=inner, rank=rank, world_size=count)


def _train(config: Mapping[str, Any], recipe: Recipe, reports: "Reports") -> None:
    path, deadline = folder_of(config["run"]), time.monotonic() + PATIENCE
    while True:
        try:
            step = train_run(config["name"], recipe, path, "resume_or_new", more=[reports])
            reports.report({"step": step})  # of a run that was at its end, there is no report
            return
        except Stopped:
            return
        except RunError as error:
            if MAY_PASS[1] not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)


class Reports(Sink):
    """Metrics for Ray, whose `report` all processes must call equally often. A thread does, so that
    steps wait for nobody; where it is slow, only the newest report counts."""

    def __init__(self, store: dist.Store, rank: int):
        self.store, self.rank = store, rank
        self.news: dict[str, Any] = {}
        self.changed, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work, name="reports", daemon=True)
        self.thread.start()

    def report(self, record: Mapping[str, Any]) -> None:
        if self.rank == 0:
            self.news = {**self.news, **record}
            self.changed.set()

    def finish(self, seconds: float | None = None) -> bool:
        """Pass on the last report; whether all processes have come to it in time."""
        self.ended.set()
        self.changed.set()
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def _work(self) -> None:
        number, last = 0, False
        while not last:
            key = f"quintet/reports/{number}"
            if self.rank == 0:
                self.changed.wait()
                self.changed.clear()
                last = self.ended.is_set()
                self.store.set(key, "last" if last else "more")
            else:
                while not self.store.check([key]):
                    time.sleep(PAUSE)
                last = self.store.get(key) == b"last"
            ray.train.report(self.news)
            number += 1

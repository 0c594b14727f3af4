"""Processes that load data, and a watch over them: one that dies or is stuck stalls nobody."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from quintet.engine.machine.world import World

LOOK = 0.5
"""Seconds between looks at the workers while a batch is waited for."""
DEATHS = 3
"""How often in a row a worker may die over the same batch before the run is refused."""
TIMEOUT = 300.0
"""Seconds that loading one batch may take."""
PR_SET_PDEATHSIG = 1


class Died(Exception):
    """A worker is gone; what it was asked for must be asked for again."""


class Stuck(Exception):
    """A batch did not come in time."""


def leave_signals_to_main(main: int, _: int) -> None:
    """A launcher signals the whole group; workers must outlive the step that is under way, but
    not the process that they work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # torch's own watch takes seconds to notice a killed parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != main:
        os._exit(1)  # killed before the line above: no signal will come


def loader(
    samples: Dataset[Any], batches: Any, collate: Any, workers: int, world: World, ahead: int = 4
) -> DataLoader[Any]:
    return DataLoader(
        samples,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=world.device.type == "cuda",
        prefetch_factor=ahead if workers else None,
        persistent_workers=workers > 0,
        # Workers share the data set's memory by forking; they never touch the device.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        worker_init_fn=partial(leave_signals_to_main, os.getpid()),
        generator=torch.Generator().manual_seed(0),  # or it would draw from the global one
    )


def stop_workers(batches: Any) -> None:
    """At once, and not when the last reference goes: a traceback may hold one to the end of the
    program, where python would wait for ever for workers that ignore its signal."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
        for worker in batches._workers:
            if worker.is_alive():
                worker.kill()


@contextmanager
def no_alarm() -> Generator[None, None, None]:
    """torch answers the death of a worker by an exception out of a signal's handler, so in the
    middle of whatever the main process does, an optimiser's step for example. Here the watch asks
    instead, while it waits for a batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        of_torch = str(getattr(before, "__module__", "")).startswith("torch.")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if of_torch or before is None else before)


class Watched:
    """The batches of a loader, one at a time; Died and Stuck where another would wait for ever."""

    def __init__(self, batches: DataLoader[Any], timeout: float):
        self._timeout, self._late = timeout, False
        self._deadline: float | None = None
        self._closed = threading.Event()
        self._batches: Any = batches._iterator  # of an earlier turn, or None
        try:
            self._look_every(0)  # waking those up takes as long as it takes
            with no_alarm():
                self._batches = iter(batches)
            self._look_every(LOOK)
        except (RuntimeError, OSError, EOFError) as error:
            self.close(at_once=True)
            raise Died from error
        if self._workers:
            threading.Thread(target=self._watch, name="data-watch", daemon=True).start()

    def _look_every(self, seconds: float) -> None:
        if self._workers:
            self._batches._timeout = seconds  # until it raises, and can be asked again

    def _watch(self) -> None:
        """End workers that are past the deadline. Only another thread can: to take over a batch
        the main one asks the worker that made it, and waits for the answer of a stuck one."""
        while not self._closed.wait(LOOK):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                self._late = True
                for worker in self._workers:
                    worker.kill()
                return

    def next(self) -> Any:
        self._deadline = time.monotonic() + self._timeout
        try:
            return self._next()
        finally:
            self._deadline = None

    def _next(self) -> Any:
        while True:
            try:
                return next(self._batches)
            except (RuntimeError, OSError, EOFError) as error:
                looked = str(error).startswith("DataLoader timed out")
                # Its connections break a moment before a worker is known to be gone.
                if wait([worker.sentinel for worker in self._workers], 0 if looked else 0.5):
                    self.close(at_once=True)
                    raise (Stuck if self._late else Died) from error
                if not looked:
                    raise  # a mistake in the data set's code, and no fault of its worker

    @property
    def _workers(self) -> list[Any]:
        return getattr(self._batches, "_workers", [])

    def close(self, at_once: bool = False) -> None:
        """With `at_once` nobody is waited for: one may be stuck, or hold a lock in its grave."""
        self._closed.set()
        for worker in self._workers if at_once else ():
            worker.kill()
        stop_workers(self._batches)

    def rest(self) -> None:
        """Leave the workers for another turn; nobody watches them until then."""
        self._closed.set()

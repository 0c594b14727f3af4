"""Data loader workers, watched: a worker that dies or hangs does not stall the run."""

import ctypes
import gc
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

from quintet.engine.data.seat import Seat
from quintet.engine.data.wire import Parcel, Slots
from quintet.engine.machine.world import keep_freed_memory

POLL_SECONDS = 0.5
"""Interval between checks of the workers while waiting for a batch."""
MAX_DEATHS = 3
"""Deaths of workers in a row on the same batch after which loading is tried one last time."""
TIMEOUT = 300.0
"""Seconds that loading one batch may take."""
PR_SET_PDEATHSIG = 1


class Died(Exception):
    """A worker died; its batches must be requested again."""


class Stuck(Exception):
    """A batch did not arrive in time."""


def begin(main: int, _: int) -> None:
    """What a worker of the process `main` does first."""
    # Collecting what it inherits, such as the graphs and events of an earlier run, would call CUDA,
    # which ends a forked process.
    gc.freeze()
    gc.enable()
    keep_freed_memory()
    # A launcher signals the whole process group; workers must survive until the current step is
    # done, but not outlive their parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # torch takes seconds to notice a killed parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != main:
        os._exit(1)  # it was killed before the line above: no signal will come


class Loader(DataLoader[Any]):
    slots: Slots | None = None

    def check_worker_number_rationality(self) -> None:
        """No warning on a machine with fewer cores than workers: a step that waits for data is
        named by the run itself."""

    def _get_iterator(self) -> Any:
        """Forks the workers, without collections of garbage until they `begin`."""
        gc.disable()
        try:
            return super()._get_iterator()
        finally:
            gc.enable()


def loader(
    samples: Dataset[Any], batches: Any, collate: Any, workers: int, world: Seat, ahead: int = 4
) -> Loader:
    slots = Slots(workers, ahead) if workers else None
    batches = Loader(
        samples,
        batch_sampler=batches,
        collate_fn=partial(slots.collated, collate) if slots else collate,
        num_workers=workers,
        pin_memory=world.device.type == "cuda",
        prefetch_factor=ahead if workers else None,
        persistent_workers=workers > 0,
        # Forked workers share the memory of the data set; they never touch the device.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        worker_init_fn=partial(begin, os.getpid()),
        generator=torch.Generator().manual_seed(0),  # the default is the global generator
    )
    batches.slots = slots
    return batches


def stop_workers(batches: Any) -> None:
    """Stop immediately, not with the last reference: a traceback may hold one until the program
    exits, where Python would wait forever for workers that ignore its signal."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
        for worker in batches._workers:
            if worker.is_alive():
                worker.kill()


@contextmanager
def without_sigchld_handler() -> Generator[None, None, None]:
    """torch raises the death of a worker from a signal handler, which may interrupt anything in the
    main process, such as an optimizer step. Here workers are checked while waiting for a batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        is_torch = str(getattr(before, "__module__", "")).startswith("torch.")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if is_torch or before is None else before)


class WatchedLoader:
    """Batches of a loader, one at a time; raises Died or Stuck instead of waiting forever."""

    def __init__(self, batches: Loader, timeout: float):
        self._timeout, self._late, self._slots = timeout, False, batches.slots
        self._deadline: float | None = None
        self._closed = threading.Event()
        self._batches: Any = batches._iterator  # of an earlier pass, or None
        try:
            self._poll_every(0)  # resetting workers of an earlier pass may take any time
            with without_sigchld_handler():
                self._batches = iter(batches)
            self._poll_every(POLL_SECONDS)
        except (RuntimeError, OSError, EOFError) as error:
            self.close(kill=True)
            raise Died from error
        if self._workers:
            threading.Thread(target=self._watch, name="data-watch", daemon=True).start()

    def _poll_every(self, seconds: float) -> None:
        if self._workers:
            self._batches._timeout = seconds  # then it raises, and can be called again

    def _watch(self) -> None:
        """Kill workers past the deadline. Another thread must: to receive a batch the main thread
        contacts the worker that loaded it, and blocks if that one hangs."""
        while not self._closed.wait(POLL_SECONDS):
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
                batch = next(self._batches)
                return batch.opened() if isinstance(batch, Parcel) else batch
            except (RuntimeError, OSError, EOFError) as error:
                polled = str(error).startswith("DataLoader timed out")
                # The connections of a dying worker break shortly before its exit is visible.
                if wait([worker.sentinel for worker in self._workers], 0 if polled else 0.5):
                    self.close(kill=True)
                    raise (Stuck if self._late else Died) from error
                if not polled:
                    raise  # an error in the code of the data set; its worker is alive

    @property
    def _workers(self) -> list[Any]:
        return getattr(self._batches, "_workers", [])

    def close(self, kill: bool = False) -> None:
        """Stop the workers; with `kill` without waiting, because one may hang or have died with a
        lock held."""
        self._closed.set()
        for worker in self._workers if kill else ():
            worker.kill()
        stop_workers(self._batches)

    def unwatch(self) -> None:
        """Keep the workers for another pass, unwatched until then."""
        self._closed.set()
        if self._slots is not None:
            self._slots.free()

"""What the campaign does inside a child before the program begins: tell of moments, or break what
the operating system gives. Nothing here is known to the program."""

import contextlib
import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

MOMENTS = ("start", "step", "epoch", "report", "validation", "exhibit", "writing", "retention")


class Moment(NamedTuple):
    """The program came to something; `seconds` are those it took, or None at its beginning."""

    name: str
    at: float
    seconds: float | None = None


def tell_moments(wire: Connection) -> None:
    """Send a Moment at the beginning and at the end of everything that may be interrupted."""
    from quintet.engine import evaluate
    from quintet.engine.run import Run
    from quintet.engine.runs import checkpoint, folder

    def send(moment: Moment) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            wire.send(moment)

    def tell(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def told(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            send(Moment(name, began))
            result = function(*given, **named)
            send(Moment(name, began, time.monotonic() - began))
            return result

        return told

    checkpoint.write = tell("writing", checkpoint.write)
    checkpoint.retain = tell("retention", checkpoint.retain)
    evaluate.measure_in_contexts = tell("validation", evaluate.measure_in_contexts)
    Run.exhibit = tell("exhibit", Run.exhibit)
    Run.report = tell("report", Run.report)
    folder.RunFolder.create = tell("start", folder.RunFolder.create)
    Run.begin = _tell_epochs(send, Run.begin)
    send(Moment("start", time.monotonic()))


def _tell_epochs(send: Callable[[Moment], None], begin: Callable[..., Any]) -> Callable[..., Any]:
    epochs: list[int] = []

    def begun(run: Any, batches: Any) -> Any:
        now = int(run.stream.epoch)
        send(Moment("epoch" if epochs and now > epochs[-1] else "step", time.monotonic(), 0.0))
        epochs.append(now)
        return begin(run, batches)

    return begun


# -- the disk -------------------------------------------------------------------------------------


def failing_fsync(after: int, number: int = errno.EIO) -> None:
    """Every fsync from the one after so many fails."""
    real, seen = os.fsync, [0]

    def fsync(handle: Any) -> None:
        seen[0] += 1
        if seen[0] > after:
            raise OSError(number, os.strerror(number))
        real(handle)

    os.fsync = fsync


def failing_writes(under: str, after: int, number: int) -> None:
    """From some point on nothing under a folder can be opened for writing, made or renamed."""
    seen = [0]

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = given
            writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        elif event in ("os.mkdir", "os.rename"):
            path, writes = given[0], True
        else:
            return
        if writes and isinstance(path, (str, bytes, os.PathLike)) and _is_under(path, under):
            seen[0] += 1
            if seen[0] > after:
                raise OSError(number, os.strerror(number), os.fsdecode(path))

    sys.addaudithook(watch)


def _is_under(path: Any, folder: str) -> bool:
    return os.path.abspath(os.fsdecode(path)).startswith(f"{folder}{os.sep}")


def slow_disk(seconds: float) -> None:
    """Every fsync and rename takes so long."""
    for name in ("fsync", "rename", "replace"):
        real = getattr(os, name)

        def late(*given: Any, real: Any = real) -> Any:
            time.sleep(seconds)
            return real(*given)

        setattr(os, name, late)


# -- the clock ------------------------------------------------------------------------------------


def jumping_clock(seed: int, span: float) -> None:
    """The time of day jumps to and fro by as much as `span` seconds, at every look."""
    import random

    chance, real = random.Random(seed), time.time
    time.time = lambda: real() + chance.uniform(-span, span)


def leaping_clock(seed: int, span: float) -> None:
    """Also the clock that never goes back leaps ahead, as after a machine has been asleep."""
    import random

    jumping_clock(seed, span)
    chance, ahead = random.Random(seed), [0.0]
    for name in ("monotonic", "perf_counter"):
        real = getattr(time, name)

        def leapt(real: Callable[[], float] = real) -> float:
            ahead[0] += chance.uniform(0, span) if chance.random() < 0.05 else 0.0
            return real() + ahead[0]

        setattr(time, name, leapt)


def shifted_clock(seconds: float) -> None:
    """The time of day is off by so much."""
    real = time.time
    time.time = lambda: real() + seconds

"""One thread owns the device and takes requests from a bounded queue.

Requests of the same key that arrive within some milliseconds run together, and each is answered as
it ends. One whose client is gone is dropped while it waits, and ends between two parts of its work
while it runs.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from quintet.engine.errors import Stopped
from quintet.serve.access import Refused, failure, say_failed
from quintet.serve.models import MOST_SAMPLES, Check, outcome
from quintet.shared.sampling import CALLER, Caller


class Work(Protocol):
    """What the worker runs."""

    @property
    def key(self) -> str | None: ...
    @property
    def samples(self) -> int: ...
    @property
    def is_quick(self) -> bool:
        """Whether it starts at once on an idle device, instead of waiting for others."""
        ...

    def run(self) -> Any: ...
    def run_all(self, works: Any, checks: Sequence[Check]) -> Iterator[tuple[int, Any]]:
        """Numbers and answers of several of this one's key."""
        ...


@dataclass(frozen=True)
class Capacity:
    """How much waits, and how long."""

    queue: int = 64
    seconds: float = 300.0
    """From arrival to the answer."""
    window: float = 0.005
    """Seconds to wait for requests that can run together."""


@dataclass(eq=False)
class Job:
    work: Work
    end: float
    done: Callable[[Any], object]
    """Called once, with the answer or an exception, unless nobody waits any more."""
    was_idle: bool
    """Nothing else ran or waited when it came."""
    gone: threading.Event = field(default_factory=threading.Event)

    def go_on(self) -> None:
        if self.gone.is_set():
            raise Stopped("the client is gone", 0)
        if time.monotonic() > self.end:
            raise Refused(504, "there was not enough time for this request")


class Worker:
    """Runs what `submit` is given; `close` ends it after the current work."""

    def __init__(self, capacity: Capacity):
        self.capacity = capacity
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.counts = Counter[str]()
        self.seconds = 0.0
        """Time that the device was in use."""
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="quintet-device", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Work, done: Callable[[Any], object]) -> Job:
        with self._change:
            if len(self.waiting) >= self.capacity.queue:
                self.counts["refused"] += 1
                raise Refused(503, "the server is busy; try again soon", {"retry-after": "2"})
            idle = not self.running and not self.waiting
            job = Job(work, time.monotonic() + self.capacity.seconds, done, idle)
            self.waiting.append(job)
            self._change.notify_all()
        return job

    def drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        job.gone.set()
        with self._change:
            if job in self.waiting:
                self.waiting.remove(job)
                self.counts["dropped"] += 1

    async def answer(self, work: Work, left: Callable[[], Any]) -> Any:
        """The answer to a request; `left` returns when its client is gone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        def done(answer: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, answer)

        job = self.submit(work, done)
        leaving = asyncio.ensure_future(left())
        try:
            await asyncio.wait(
                {future, leaving},
                timeout=self.capacity.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            leaving.cancel()
            if not future.done():
                self.drop(job)
        if not future.done():
            gone = leaving.done() and not leaving.cancelled()
            late = Refused(504, "there was not enough time for this request")
            raise Refused(499, "the client is gone") if gone else late
        if isinstance(future.result(), Exception):
            raise future.result()
        return future.result()

    def close(self) -> None:
        with self._change:
            self._closed = True
            for job in [*self.running]:
                job.gone.set()
            self._change.notify_all()
        self._thread.join()

    # -- in the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        while jobs := self._next():
            began = time.monotonic()
            self.counts["batches"] += 1
            self.counts["batched"] += len(jobs)
            for job, answer in self._run(jobs):
                self.running.remove(job)
                job.done(self._said(answer))
            self.seconds += time.monotonic() - began

    def _next(self) -> list[Job]:
        """The first job, and those that can run with it; none when closed."""
        with self._change:
            self._change.wait_for(lambda: self.waiting or self._closed)
            if self._closed:
                return []
            first = self.waiting[0]
            if first.work.key is not None and not (first.was_idle and first.work.is_quick):
                self._change.wait_for(lambda: self._closed, self.capacity.window)
            chosen: list[Job] = []
            room = MOST_SAMPLES
            for job in [*self.waiting]:
                same = job is first or (job.work.key is not None and job.work.key == first.work.key)
                if same and (job.work.samples <= room or not chosen):
                    room -= job.work.samples
                    chosen.append(job)
                    self.waiting.remove(job)
            self.running = [*chosen]
            return chosen or self._next()

    def _run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """The jobs with their answers, as they end."""

        def go_on() -> None:
            """Work for several ends when the last of them is gone or late."""
            ends = [outcome(job.go_on) for job in self.running]
            if None not in ends:
                raise ends[-1]

        token = CALLER.set(Caller(lambda line: None, go_on))
        try:
            works = [job.work for job in jobs]
            if len(works) == 1:
                yield jobs[0], outcome(works[0].run)
                return
            for index, answer in works[0].run_all(works, [job.go_on for job in jobs]):
                yield jobs[index], answer
        except Exception as error:  # such as a full disk
            yield from ((job, error) for job in [*self.running])
        finally:
            CALLER.reset(token)

    def _said(self, answer: Any) -> Any:
        """Mistakes in code become a sentence and a line of the log."""
        if isinstance(answer, Exception) and not isinstance(answer, Refused):
            if isinstance(answer, Stopped):
                return Refused(499, "the client is gone")
            if "out of memory" in str(answer) or isinstance(answer, MemoryError):
                return Refused(507, "there is not enough memory for this request; ask for less")
            say_failed(answer)
            return failure(answer)
        return answer

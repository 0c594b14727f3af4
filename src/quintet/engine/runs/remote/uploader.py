"""Uploader: writes what a run leaves in its mirror to object storage, in the background.

One thread looks at the mirror whenever it is told of news. The newest checkpoint comes first; one
that was superseded while another was sent is passed over, unless it is to be kept. The order makes
every moment a place to resume from: files of a checkpoint, reports up to it, its state.json,
best.json, and only then are older checkpoints removed.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from quintet.engine.errors import RunError
from quintet.engine.runs import lock
from quintet.engine.runs.checkpoint import examine, path_of, read_about, steps_in, superfluous
from quintet.engine.runs.remote.bucket import explain
from quintet.engine.runs.remote.mirror import (
    CHECKPOINTS,
    Mirror,
    complete,
    local_files,
    stamp,
)
from quintet.engine.when import When

WAIT = "QUINTET_UPLOAD_SECONDS"
STALLED = 600.0
"""Seconds without progress after which a run that has ended gives up."""
PAUSE, SHARE = 15.0, 20
"""Between two uploads of reports: at least so many seconds, and so many times the last one's."""
BACKOFF, RELEASE = 30.0, 4.0


class Uploader:
    """For the process that trains; raises if another one has the run."""

    def __init__(self, mirror: Mirror, retention: tuple[int, int], rollback: bool):
        self.mirror, self.retention = mirror, retention
        self.notes: list[str] = []
        self.handle: int | None
        self.bucket, self.lease, self.handle = mirror.claim(2 if rollback else 1, self.notes.append)
        self.bucket.progress = self._progressed
        self.progress = time.monotonic()
        self.uploading: int | None = None
        self.error: RunError | None = None
        self.prunes = False
        self.written: set[int] = set()
        """Checkpoints of this process; others are examined before they are sent."""
        self.gone: set[int] = set()
        """Steps in the bucket that a rollback has discarded."""
        self._asked = self._done = 0
        self._last = self._gave_up = False
        self._trouble = ""
        self._next_files = 0.0
        self._changed = threading.Condition()
        self._seals: dict[int, str] | None = None
        self._sent: dict[str, list[int]] = {}
        self._thread = threading.Thread(target=self._work, name="uploader", daemon=True)
        self._thread.start()

    # -- for the run; none of these waits, except the last two -----------------------------------

    def saved(self, step: int, prunes: bool) -> None:
        """A checkpoint is complete; `prunes`: it may displace earlier ones."""
        with self._changed:
            self.written.add(step)
            self.prunes = prunes
            self._ask()

    def reported(self) -> list[str]:
        """There are new reports. Returns what the run should say, or raises if the run is lost."""
        with self._changed:
            self._ask()
            notes, self.notes = self.notes, []
        error = self.error or self.lease.lost
        if error is not None:
            raise error
        return notes

    def forget_after(self, step: int) -> None:
        with self._changed:
            self.gone |= {s for s in (*(self._seals or {}), self.uploading or 0) if s > step}
            self.written -= self.gone

    def finish(self, hurry: Callable[[], object] = lambda: True) -> str:
        """Wait until everything is in the bucket, while there is progress; in a `hurry` at most
        QUINTET_UPLOAD_SECONDS. Returns what is missing."""
        with self._changed:
            self._last = True
            self._ask()
        limit, until = float(os.environ.get(WAIT, 100)), math.inf
        self.progress = time.monotonic()
        while self._done < self._asked and self.error is None:
            now = time.monotonic()
            if hurry():
                until = min(until, now + limit)
            if now > until or now - self.progress > max(STALLED, limit):
                break
            with self._changed:
                self._changed.wait(0.1)
        self._gave_up = self._done < self._asked
        return self._missing() if self._gave_up else ""

    def close(self) -> None:
        """Called once more at the end, after the last file is written."""
        if self.handle is None:
            return
        if self._asked and not self._gave_up and self.error is None and self.lease.lost is None:
            self.finish()
        with self._changed:
            self.error = self.error or RunError("this run has ended")
            self._changed.notify_all()
        # Both may wait for a store that does not answer; the lease then ends by itself.
        for thread in (self._thread, threading.Thread(target=self._release, daemon=True)):
            if not thread.is_alive():
                with suppress(RuntimeError):
                    thread.start()
            thread.join(timeout=RELEASE)
        lock.release(self.handle)
        self.handle = None

    def _release(self) -> None:
        with suppress(Exception):
            self.lease.close(wrote=self._asked > 0)

    def _ask(self) -> None:
        self._asked += 1
        self._changed.notify_all()

    def _missing(self) -> str:
        if self.error is not None:
            return str(self.error)
        reason = f" ({self._trouble})" if self._trouble else ""
        steps = [
            step for step in steps_in(self.mirror.checkpoints) if step not in (self._seals or {})
        ]
        newest = f"checkpoint {steps[-1]}" if steps else "the last reports"
        last = max(self._seals or {}, default=None)
        there = "holds no checkpoint" if last is None else f"ends with checkpoint {last}"
        return (
            f"{newest} could not be uploaded{reason}: {self.mirror.url} {there}. The rest is in "
            f"{self.mirror.path}; resuming on this machine uploads it"
        )

    # -- the thread -------------------------------------------------------------------------------

    def _progressed(self) -> None:
        self.progress = time.monotonic()

    def _work(self) -> None:
        delay = 0.5
        while self.error is None:
            with self._changed:
                while self._done >= self._asked and self.error is None:
                    self._changed.wait()
                target, last = self._asked, self._last
            if self.error is not None:
                return
            try:
                if not self._sync(last):
                    self._pause(self._next_files - time.monotonic())
                    continue
            except RunError as error:
                self.error = error
                return
            except Exception as error:
                self._note_trouble(explain(error))
                self._pause(min(delay, 5.0) if last else delay)
                delay = min(2 * delay, BACKOFF)
                continue
            delay = 0.5
            self._note_trouble("")
            with self._changed:
                self._done = target
                self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        """Until then, or until there is a checkpoint or the end."""
        until, written = time.monotonic() + seconds, len(self.written)
        with self._changed:
            while self.error is None and not self._last and len(self.written) == written:
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)
            if self._last:
                self._changed.wait(max(0.0, min(0.5, until - time.monotonic())))

    def _note_trouble(self, trouble: str) -> None:
        with self._changed:
            if trouble and not self._trouble:
                self.notes.append(f"{self.mirror.url} cannot be written: {trouble}; trying again")
            elif self._trouble and not trouble:
                self.notes.append(f"{self.mirror.url} is written again")
            self._trouble = trouble

    def _sync(self, whole: bool) -> bool:
        """Send what is new; whether nothing is left."""
        if self._seals is None:
            self._take_stock()
        assert self._seals is not None
        self.lease.check()
        sent = False
        while self.error is None:
            with self._changed:
                gone, self.gone = self.gone, set()
            self._remove(gone & {*self._seals})
            step = self._next()
            if step is None:
                break
            self._send_checkpoint(step)
            sent = True
        if not sent and not whole and time.monotonic() < self._next_files:
            return False
        self._send_files()
        return True

    def _take_stock(self) -> None:
        """What the bucket holds at the start; what a killed upload left there is removed."""
        objects = self.bucket.list()
        steps = complete(objects)
        seals = {step: self._seal(self.bucket.read(_state(step))) for step in steps}
        whole = {_state(step).rpartition("/")[0] for step in steps}
        below = (name for name in objects if name.startswith(f"{CHECKPOINTS}/"))
        self.lease.check()
        self.bucket.remove([name for name in below if name.rpartition("/")[0] not in whole])
        record = self.mirror.record().get("versions", {})
        self._sent = {
            name: record[name][1:]
            for name, stored in objects.items()
            if name in record and (not record[name][0] or record[name][0] == stored.version)
        }
        self._seals = seals

    def _seal(self, content: bytes) -> str:
        try:
            return str(json.loads(content)["seal"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    def _best(self) -> int | None:
        try:
            return int(json.loads((self.mirror.path / "best.json").read_bytes())["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _next(self) -> int | None:
        """The newest checkpoint that the bucket should have."""
        assert self._seals is not None
        last, every = self.retention
        for step in reversed(steps_in(self.mirror.checkpoints)):
            path = path_of(self.mirror.checkpoints, step)
            kept = step == self._best() or When(every).due(step)
            if not (kept or len(self._seals) < last or step > max(self._seals, default=-1)):
                continue
            try:
                seal = str(read_about(path)["seal"])
            except (OSError, ValueError, KeyError):
                continue  # it has just been removed, or it is damaged
            if self._seals.get(step) == seal:
                continue
            if step in self.written or examine(path) is None:
                return step
        return None

    def _send_checkpoint(self, step: int) -> None:
        assert self._seals is not None
        path, prefix = path_of(self.mirror.checkpoints, step), _state(step).rpartition("/")[0]
        self.uploading = step
        try:
            state = (path / "state.json").read_bytes()
            about = json.loads(state)
            if step in self._seals:  # repeated after a rollback: absent until it is complete
                self._remove({step})
            for name in about["files"]:
                self.bucket.put(path / name, f"{prefix}/{name}")
            stored = self.bucket.list(prefix)
            for name, facts in about["files"].items():
                if f"{prefix}/{name}" not in stored:
                    raise OSError(f"{name} is missing after its upload")
                if stored[f"{prefix}/{name}"].size != facts["bytes"]:
                    raise OSError(f"{name} has another size after its upload")
            self._send_files()
            self.lease.check()
            if step not in self.gone and self.error is None:
                self.bucket.write(_state(step), state)
                self._seals[step] = str(about["seal"])
        except FileNotFoundError:
            if path.exists():
                raise
            self.bucket.remove(self.bucket.list(prefix))  # pruned or rolled back meanwhile
            return
        finally:
            self.uploading = None
        self._send_files(only="best.json")
        last, every = self.retention
        if self.prunes:
            self._remove({*superfluous([*self._seals], last, every, self._best(), newest=step)})

    def _remove(self, steps: set[int]) -> None:
        """Remove checkpoints, each state.json first."""
        assert self._seals is not None
        if steps:
            self.lease.check()
        for step in sorted(steps):
            names = self.bucket.list(_state(step).rpartition("/")[0])
            self.bucket.remove([_state(step), *(n for n in names if n != _state(step))])
            self._seals.pop(step, None)

    def _send_files(self, only: str | None = None) -> None:
        assert self._seals is not None
        begun = time.monotonic()
        names = local_files(self.mirror.path)
        for name in names if only is None else [only]:
            path = self.mirror.path / name
            now = [*stamp(path)]
            waits = name == "best.json" and self._best() not in self._seals
            if waits or self._sent.get(name) == now or now[0] < 0:
                continue
            try:
                self.bucket.put(path, name)
            except FileNotFoundError:
                if path.exists():
                    raise
                continue
            self._sent[name] = now
        for name in self._sent.keys() - names if only is None else ():
            self.bucket.remove([name])
            del self._sent[name]
        if only is None:
            self.mirror.note(versions={name: ["", *at] for name, at in self._sent.items()})
            self._next_files = time.monotonic() + max(PAUSE, SHARE * (time.monotonic() - begun))


def _state(step: int) -> str:
    return f"{CHECKPOINTS}/step-{step:08d}/state.json"

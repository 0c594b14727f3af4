"""Lease: which process may write a run in object storage.

`lease/00000001.json` names an owner and the time until which it counts. Objects are numbered:
whoever takes the run creates the next number, which object stores allow only once, and the largest
number counts. Its owner renews it; one who finds a larger number has lost the run.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Container
from typing import Any

from quintet.engine.errors import RunError
from quintet.engine.runs.remote.bucket import Bucket, explain

SECONDS = "QUINTET_LEASE_SECONDS"
FOLDER = "lease"


class Lost(RunError):
    """Another process has taken the run."""


class Lease:
    def __init__(self, bucket: Bucket, owner: str, gone: Container[str]):
        """Take the run, or raise. `gone`: owners whose processes are known to have ended."""
        self.bucket, self.owner = bucket, owner
        self.lost: Lost | None = None
        self.seconds = float(os.environ.get(SECONDS, 90))
        numbers = _numbers(bucket)
        last = read(bucket, numbers[-1]) if numbers else {}
        self.owner_before = str(last.get("owner", ""))
        if self.owner_before not in gone and float(last.get("until", 0)) > time.time():
            raise RunError(
                f"{bucket.url} is being trained by {_name(last)}, which holds it until "
                f"{_clock(last)}; stop it, or try again after that time"
            )
        self.number = (numbers[-1] if numbers else 0) + 1
        self._take()
        bucket.remove(_path(number) for number in numbers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        reason: Exception | None = None
        for _ in range(3):
            try:
                self.bucket.create(_path(self.number), self._page(self.seconds))
            except Exception as error:  # it may have been written all the same
                reason = error
            if self.number in _numbers(self.bucket):
                holder = read(self.bucket, self.number)
                if holder.get("owner") == self.owner:
                    return
                raise RunError(
                    f"{self.bucket.url} is being trained by {_name(holder)}, which has just "
                    f"started and holds it until {_clock(holder)}"
                )
        detail = explain(reason) if reason else "it does not keep what is written"
        raise RunError(f"{self.bucket.url} cannot be written: {detail}") from reason

    def check(self) -> None:
        """Raise `Lost` if another process has taken the run."""
        numbers = _numbers(self.bucket)
        if not numbers:
            raise Lost(f"{self.bucket.url} has been removed while it was trained")
        if numbers[-1] == self.number:
            return
        raise Lost(
            f"{self.bucket.url} has been taken by {_name(read(self.bucket, numbers[-1]))}, as this "
            "process did not reach it in time; it stops, to overwrite nothing"
        )

    def close(self, wrote: bool) -> None:
        """Release the run; the last owner who wrote to it stays named."""
        self._stop.set()
        self._thread.join()
        self.check()
        owner = self.owner if wrote else self.owner_before
        self.bucket.write(_path(self.number), self._page(0, owner))

    def _renew(self) -> None:
        while not self._stop.wait(self.seconds / 3):
            try:
                self.check()
                self.bucket.write(_path(self.number), self._page(self.seconds))
            except Lost as error:
                self.lost = error
                return
            except Exception:  # the store is away; the uploader says so
                continue

    def _page(self, seconds: float, owner: str = "") -> bytes:
        until = time.time() + seconds if seconds else 0
        about = {"owner": owner or self.owner, "host": socket.gethostname(), "process": os.getpid()}
        return json.dumps({**about, "until": until}).encode()


def read(bucket: Bucket, number: int) -> dict[str, Any]:
    try:
        page = json.loads(bucket.read(_path(number)))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return page if isinstance(page, dict) and isinstance(page.get("until", 0), (int, float)) else {}


def _numbers(bucket: Bucket) -> list[int]:
    names = (name.rpartition("/")[2].removesuffix(".json") for name in bucket.list(FOLDER))
    return sorted(int(name) for name in names if name.isdecimal())


def _path(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def _name(page: dict[str, Any]) -> str:
    return f"process {page.get('process')} on {page.get('host')}"


def _clock(page: dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(page.get("until", 0))))

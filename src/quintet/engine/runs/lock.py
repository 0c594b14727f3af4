"""Locks of files that die with their process, and not later with its workers."""

import fcntl
import os
from pathlib import Path

_LOCKS: set[int] = set()
"""Handles of the locks that this process holds."""


def _close_inherited() -> None:
    """In a forked child: a data worker outlives a killed main process by a moment, or for ever
    while it is stopped, and must not hold the lock meanwhile."""
    for handle in _LOCKS:
        os.close(handle)
    _LOCKS.clear()


os.register_at_fork(after_in_child=_close_inherited)


def acquire(path: Path, wait: bool = False) -> int | None:
    """A handle that holds the lock until `release` or the end of the process; None if another
    process has it. OSError if the file cannot be written."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    _LOCKS.add(handle)
    return handle


def release(handle: int) -> None:
    _LOCKS.discard(handle)
    os.close(handle)

"""Requests to a run from outside: one file in its folder, which it looks for at its reports.

A request is for one start of the run, named in the lock file: what a dead process left behind does
not reach the next one. It is removed before it is carried out, so that it cannot recur.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder
from quintet.files import write_json

ACTIONS = ("evaluate", "save", "stop")
"""In the order in which they are carried out."""
MAX_BYTES = 4096


def file_of(run: Path) -> Path:
    return run / "requests.json"


def ask(run: Path, action: str) -> list[str]:
    """Add to what is asked of the run; returns all of it."""
    start = start_of(run)
    if not start:
        raise RunError(f"{run} has no running process that takes requests; resume it first")
    actions = [each for each in ACTIONS if each == action or each in pending(run)]
    write_json(file_of(run), {"start": start, "actions": actions})
    return actions


def pending(run: Path) -> list[str]:
    """What the run has been asked for and has not taken yet."""
    start = start_of(run)
    asked = _read(file_of(run))
    return _actions(asked) if start and asked.get("start") == start else []


def start_of(run: Path) -> str:
    """Name of the latest start of the run."""
    try:
        with open(run / ".lock", encoding="ascii") as file:
            return file.read(100)
    except (OSError, ValueError):
        return ""


def take(folder: RunFolder) -> tuple[list[str], str]:
    """For the process that holds the lock: what is asked of it, and a sentence about what is not
    carried out. The request is gone afterwards."""
    path = file_of(folder.path)
    try:
        path.lstat()
    except OSError:
        return [], ""
    asked = _read(path)
    try:
        path.unlink()
    except OSError:
        return [], ""  # it would come again at every report
    if asked.get("start") != folder.start:
        return [], "a request to an earlier start of this run was dropped"
    return _actions(asked), ""


def to_code(actions: Iterable[str]) -> int:
    """As a number, which processes agree on by a sum: only the main one has any."""
    return sum(1 << ACTIONS.index(action) for action in actions)


def from_code(code: int) -> list[str]:
    return [action for bit, action in enumerate(ACTIONS) if code & (1 << bit)]


def _actions(asked: dict[str, Any]) -> list[str]:
    named = asked.get("actions")
    return [action for action in ACTIONS if isinstance(named, list) and action in named]


def _read(path: Path) -> dict[str, Any]:
    """What the file says; nothing where it is no such file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            value = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

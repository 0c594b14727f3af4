"""A run folder read again and again: only what is new, and never more than a page can show."""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import read_json
from quintet.report.curves import MAX_METRICS, MAX_POINTS, NOT_PLOTTED
from quintet.report.markup import is_finite
from quintet.report.source import (
    MAX_EVENTS,
    MAX_JOURNAL_BYTES,
    MAX_JSON_BYTES,
    MAX_LINE_BYTES,
    Source,
    open_regular,
    parse,
    read_best,
)

Record = Mapping[str, Any]
Points = dict[str, tuple[list[float], list[float]]]
"""Steps and values by metric."""
CHUNK = 8 * MAX_LINE_BYTES
ANCHOR = 64


class Tail:
    """Whole new lines of a growing file, with their offsets.

    `forget` is called where the file is another one than before: replaced, as a resume does that
    drops reports, cut, or gone.
    """

    def __init__(self, path: Path, forget: Callable[[], None]):
        self.path, self.forget = path, forget
        self.offset, self.identity, self.anchor = 0, (0, 0), b""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            handle = open_regular(self.path)
        except OSError:
            self._start((0, 0), 0)
            return
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            identity = (about.st_dev, about.st_ino)
            if identity != self.identity or not self._continues(file):
                self._start(identity, max(0, about.st_size - MAX_JOURNAL_BYTES))
            yield from self._new(file)

    def _start(self, identity: tuple[int, int], offset: int) -> None:
        if self.identity != identity or self.offset:
            self.forget()
        self.offset, self.identity, self.anchor = offset, identity, b""

    def _continues(self, file: BinaryIO) -> bool:
        """Whether the bytes before the offset are those of last time: a rewritten file can be as
        long and even have the number of the old one."""
        file.seek(self.offset - len(self.anchor))
        return file.read(len(self.anchor)) == self.anchor

    def _new(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        file.seek(self.offset)
        while chunk := file.read(CHUNK):
            end = chunk.rfind(b"\n") + 1
            if not end and len(chunk) < CHUNK:
                return  # a line that is being written
            end = end or len(chunk)  # longer than any report: dropped, in pieces
            for line in chunk[:end].splitlines(keepends=True):
                if line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                    yield self.offset, line
                self.offset += len(line)
            self.anchor = chunk[max(0, end - ANCHOR) : end]
            file.seek(self.offset)


class Thinned:
    """Evenly spaced records of any number: beyond twice the limit every other one is dropped."""

    def __init__(self, limit: int = MAX_POINTS):
        self.limit, self.stride, self.seen = limit, 1, 0
        self.kept: list[tuple[int, Record]] = []
        self.last: tuple[int, bytes] | None = None
        """The newest line, if it is not kept."""

    def add(self, offset: int, line: bytes) -> Record | None:
        place, self.seen = self.seen, self.seen + 1
        self.last = (offset, line)
        if place & (self.stride - 1):
            return None
        self.last = None
        record = next(parse(line), None)
        if record is not None:
            self.kept.append((offset, record))
        if len(self.kept) > 2 * self.limit:
            del self.kept[1::2]
            self.stride *= 2
        return record

    def since(self, offset: int) -> Iterator[tuple[int, Record]]:
        yield from (item for item in self.kept if item[0] >= offset)
        if self.last and self.last[0] >= offset:
            yield from ((self.last[0], record) for record in parse(self.last[1]))


class Journal:
    """metrics.jsonl: reports and evaluations, thinned apart, as there are few evaluations."""

    def __init__(self, path: Path):
        self.tail = Tail(path, self._forget)
        self._forget()

    def _forget(self) -> None:
        self.reports, self.evaluations = Thinned(), Thinned()
        self.points: Counter[str] = Counter()
        self.generation = uuid4().hex[:12]
        """Of the content: offsets of another one mean nothing."""

    def read(self) -> None:
        for offset, line in self.tail.lines():
            record = (self.evaluations if b'"val/' in line else self.reports).add(offset, line)
            for name, value in (record or {}).items():
                if is_finite(value) and (name in self.points or len(self.points) < MAX_METRICS):
                    self.points[name] += 1

    def since(self, offset: int) -> list[Record]:
        found = [*self.reports.since(offset), *self.evaluations.since(offset)]
        return [record for _, record in sorted(found, key=lambda item: item[0])]

    @property
    def plotted(self) -> str:
        """Changes where other curves are plotted: one needs two points."""
        names = sorted(name for name, count in self.points.items() if count > 1)
        return f"{self.generation} {hash(tuple(names)):x}"


class Follower:
    """One run; it may end, be resumed, vanish and come back."""

    def __init__(self, path: Path, label: str):
        self.path, self.label = path, label
        self.journal = Journal(path / "metrics.jsonl")
        self.events: deque[Record] = deque(maxlen=MAX_EVENTS)
        self.log = Tail(path / "events.jsonl", self.events.clear)
        self.about: dict[str, Any] = {}
        self.missing = ""
        """Why the folder cannot be read; what was read before stays."""
        self.held_start = ""
        """The latest start that a process of this machine was seen to hold."""

    def read(self) -> Source:
        try:
            config = self.path / "config.json"
            if config.is_file() and config.stat().st_size > MAX_JSON_BYTES:
                raise RunError(f"{config} has more than {MAX_JSON_BYTES:,} bytes")
            self.about, self.missing = read_json(config), ""
        except RunError as error:
            self.missing = str(error)
        else:
            self.journal.read()
            for _, line in self.log.lines():
                self.events.extend(parse(line))
        best = read_best(self.path / "best.json")
        reports = self.journal.since(0)
        return Source(self.path, self.label, self.about, reports, list(self.events), best)


def new_points(records: Sequence[Record]) -> Points:
    points: Points = {}
    for record in records:
        step = record.get("step")
        for name, value in record.items() if is_finite(step) else ():
            if is_finite(value) and name not in NOT_PLOTTED:
                steps, values = points.setdefault(name, ([], []))
                steps.append(step)  # type: ignore[arg-type]
                values.append(float(f"{value:.6g}"))
    return points


def age(path: Path) -> float | None:
    """Seconds since a file was written."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None

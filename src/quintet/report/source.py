"""What a run has to show, read within limits: a folder may come from anywhere."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder
from quintet.report.markup import duration, shown

CONFIG = 16_000_000
JOURNAL = 256_000_000
"""Bytes of metrics.jsonl that are looked at; of a longer one, the last."""
LINE = 1_000_000
REPORTS = 2000
"""About as many reports of training are kept; evaluations are all kept."""
EVENTS = 1000
STEP = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Source:
    """One run, as the page sees it."""

    path: Path
    label: str
    about: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    best: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def settings(self) -> Mapping[str, Any]:
        return part(self.about, "settings")

    @property
    def recipe(self) -> str:
        return str(self.about.get("recipe") or "a model of your own")

    def exhibits(self) -> tuple[str, list[Path]]:
        """The newest step that left any, and its files by name."""
        top = self.path / "exhibits"
        steps = sorted(p.name for p in entries(top) if STEP.fullmatch(p.name) and is_folder(p))
        for step in reversed(steps):
            files = [p for p in entries(top / step) if not p.name.startswith(".")]
            if files:
                return step, sorted(files, key=natural)
        return "", []


def load(paths: Sequence[Path]) -> list[Source]:
    return [_load(path, label) for path, label in zip(paths, labels(paths))]


def labels(paths: Sequence[Path]) -> list[str]:
    """Names of the folders; where two are called the same, their paths."""
    names = [path.resolve().name for path in paths]
    return [n if names.count(n) == 1 else str(p) for p, n in zip(paths, names)]


def _load(path: Path, label: str) -> Source:
    config = path / "config.json"
    if config.is_file() and config.stat().st_size > CONFIG:
        raise RunError(f"{config} holds more than {CONFIG:,} bytes; put the run's own file back")
    folder = RunFolder.open(path)
    events = list(journal(folder.events, 1))[-EVENTS:]
    return Source(path, label, folder.about, reports(folder.metrics), events, _best(folder))


def _best(folder: RunFolder) -> Mapping[str, Any]:
    try:
        found = json.loads(content(folder.path / "best.json", CONFIG))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def part(about: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside an object, empty where a file holds something else there."""
    value = about.get(name)
    return value if isinstance(value, Mapping) else {}


def reports(path: Path) -> list[dict[str, Any]]:
    """Evaluations, and reports of training, thinned before they are parsed: it costs the most."""
    try:
        total = min(path.stat().st_size, JOURNAL)
    except OSError:
        return []
    lines = total // max(1, _length(path))
    return list(journal(path, max(1, lines // REPORTS)))


def _length(path: Path) -> int:
    """Bytes of a line, about."""
    lines = list(zip(range(50), raw_lines(path)))
    return sum(len(line) for _, line in lines) // max(1, len(lines))


def journal(path: Path, stride: int) -> Iterator[dict[str, Any]]:
    """The objects in a JSONL file: each that is an evaluation, the last, and of the others one in
    `stride`. What is no JSON object is left out."""
    last = b""
    for count, line in enumerate(raw_lines(path)):
        last = line
        if stride == 1 or b'"val/' in line or count // stride * stride == count:
            last = b""
            yield from _parsed(line)
    yield from _parsed(last)


def _parsed(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield value


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines within the limits; a file that is not there has none."""
    try:
        handle = opened(path)
    except OSError:
        return
    with os.fdopen(handle, "rb") as file:
        if (over := os.fstat(handle).st_size - JOURNAL) > 0:
            file.seek(over)
            file.readline(LINE)
        whole = True
        while line := file.readline(LINE):
            if whole and len(line) < LINE:
                yield line
            whole = line.endswith(b"\n")


def opened(path: Path) -> int:
    """A regular file that is no link; a pipe or a device would block or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return handle


def content(path: Path, most: int, begin: int = -1) -> bytes:
    """A file, or its first bytes; OSError where it is a link, no file, or larger than `most`."""
    with os.fdopen(opened(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(f"{path} holds more than {most:,} bytes")
        return file.read(begin)


def is_folder(path: Path) -> bool:
    """And no link: the page travels, so it holds nothing from outside the run."""
    return path.is_dir() and not path.is_symlink()


def entries(folder: Path, most: int = 5000) -> list[Path]:
    if not is_folder(folder):
        return []
    with os.scandir(folder) as found:
        return [folder / entry.name for _, entry in zip(range(most), found)]


def natural(path: Path) -> list[tuple[str, int]]:
    """So that 10 comes after 9."""
    found = re.findall(r"([^0-9]*)([0-9]{0,18})", path.stem)
    return [(word, int(digits or 0)) for word, digits in found]


def last_report(source: Source) -> Mapping[str, Any]:
    found = [r for r in source.reports if "samples_per_second" in r]
    return found[-1] if found else {}


def facts(source: Source) -> dict[str, str]:
    """Where the run stands and what it cost; not yet escaped."""
    last, about, best = last_report(source), source.about, source.best
    machine = part(about, "machine")
    found = {
        "step": f"{last.get('step', 0)} of {source.settings.get('steps')}",
        "samples": f"{shown(last.get('samples', 0), ',')} ({last.get('epoch', 0)} epochs)",
        "time": duration(last.get("seconds", 0)),
        "speed": f"{shown(last.get('samples_per_second'), '.4g')} samples per second",
        "waiting for data": f"{shown(last.get('waiting'), '.0%')} of the time",
        "global batch": f"{about.get('global_batch')} on {about.get('processes')} process(es)",
        "hardware": str(machine.get("device", "not recorded")),
    }
    if best:
        value = shown(best.get("value"), ".5g")
        found["best"] = f"{best.get('metric')} {value} at step {best.get('step')}"
    return found

"""Contents of a run folder for the report, read within limits: a folder may come from anywhere."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder
from quintet.report.markup import duration, format_value

MAX_JSON_BYTES = 16_000_000
MAX_JOURNAL_BYTES = 256_000_000
"""Bytes read from the end of metrics.jsonl."""
MAX_LINE_BYTES = 1_000_000
MAX_REPORTS = 2000
"""Approximate limit of training reports; evaluations are all read."""
MAX_EVENTS = 1000
STEP_FOLDER = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Source:
    """One run of the report."""

    path: Path
    label: str
    about: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    best: Mapping[str, Any] = field(default_factory=dict[str, Any])
    live: Mapping[str, str] = field(default_factory=dict[str, str])
    """Rows of the summary that only a live page knows."""

    @property
    def settings(self) -> Mapping[str, Any]:
        return mapping(self.about.get("settings"))

    @property
    def recipe(self) -> str:
        return str(self.about.get("recipe") or "custom model")

    def exhibits(self) -> tuple[str, list[Path]]:
        """The newest step with exhibits, and its files by name."""
        top = self.path / "exhibits"
        steps = sorted(
            p.name for p in entries(top) if STEP_FOLDER.fullmatch(p.name) and is_folder(p)
        )
        for step in reversed(steps):
            files = [p for p in entries(top / step) if not p.name.startswith(".")]
            if files:
                return step, sorted(files, key=natural_order)
        return "", []

    def last_report(self) -> Mapping[str, Any]:
        return next((r for r in reversed(self.reports) if "samples_per_second" in r), {})

    def last_evaluation(self) -> Mapping[str, Any]:
        evaluations = (r for r in reversed(self.reports) if any(n.startswith("val/") for n in r))
        return next(evaluations, {})


def load(paths: Sequence[Path]) -> list[Source]:
    return [_load(path, label) for path, label in zip(paths, labels(paths))]


def labels(paths: Sequence[Path]) -> list[str]:
    """Names of the folders; the paths where names are not unique."""
    names = [path.resolve().name for path in paths]
    return [n if names.count(n) == 1 else str(p) for p, n in zip(paths, names)]


def _load(path: Path, label: str) -> Source:
    config = path / "config.json"
    if config.is_file() and config.stat().st_size > MAX_JSON_BYTES:
        raise RunError(
            f"{config} has more than {MAX_JSON_BYTES:,} bytes; restore the original file"
        )
    folder = RunFolder.open(path)
    events = list(read_journal(folder.events, 1))[-MAX_EVENTS:]
    best = read_best(path / "best.json")
    return Source(path, label, folder.about, read_reports(folder.metrics), events, best)


def read_best(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(content(path, MAX_JSON_BYTES)))
    except (OSError, ValueError, RecursionError):
        return {}


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a JSON object, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def read_reports(path: Path) -> list[dict[str, Any]]:
    """Evaluations and training reports; thinned before parsing, which is the main cost."""
    try:
        total = min(path.stat().st_size, MAX_JOURNAL_BYTES)
    except OSError:
        return []
    num_lines = total // max(1, _mean_line_bytes(path))
    return list(read_journal(path, max(1, num_lines // MAX_REPORTS)))


def _mean_line_bytes(path: Path) -> int:
    """Mean length of a line, estimated from the first ones."""
    lines = list(zip(range(50), raw_lines(path)))
    return sum(len(line) for _, line in lines) // max(1, len(lines))


def read_journal(path: Path, stride: int) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file: every evaluation, the last line, and one in `stride` of the others.
    Lines that are not JSON objects are dropped."""
    last = b""
    for count, line in enumerate(raw_lines(path)):
        last = line
        if stride == 1 or b'"val/' in line or count // stride * stride == count:
            last = b""
            yield from parse(line)
    yield from parse(last)


def parse(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield value


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines within the limits; none where the file is missing."""
    try:
        handle = open_regular(path)
    except OSError:
        return
    with os.fdopen(handle, "rb") as file:
        if (excess := os.fstat(handle).st_size - MAX_JOURNAL_BYTES) > 0:
            file.seek(excess)
            file.readline(MAX_LINE_BYTES)  # the rest of a line that the offset cuts
        # A line above the limit arrives in pieces; none of them is yielded.
        at_start = True
        while line := file.readline(MAX_LINE_BYTES):
            if at_start and len(line) < MAX_LINE_BYTES:
                yield line
            at_start = line.endswith(b"\n")


def open_regular(path: Path) -> int:
    """Open a regular file that is not a link; a pipe or a device could block or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return handle


def content(path: Path, max_bytes: int, count: int = -1) -> bytes:
    """A file, or its first `count` bytes; OSError for a link, a non-file, or a larger file."""
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(f"{path} has more than {max_bytes:,} bytes")
        return file.read(count)


def is_folder(path: Path) -> bool:
    """A folder that is not a link: the report includes nothing from outside of the run."""
    return path.is_dir() and not path.is_symlink()


def entries(folder: Path, limit: int = 5000) -> list[Path]:
    if not is_folder(folder):
        return []
    with os.scandir(folder) as iterator:
        return [folder / entry.name for _, entry in zip(range(limit), iterator)]


def natural_order(path: Path) -> list[tuple[str, int]]:
    """Sort key that puts 10 after 9."""
    pairs = re.findall(r"([^0-9]*)([0-9]{0,18})", path.stem)
    return [(prefix, int(digits or 0)) for prefix, digits in pairs]


def summary(source: Source) -> dict[str, str]:
    """Progress and cost of the run; not yet escaped."""
    last, about, best = source.last_report(), source.about, source.best
    machine = mapping(about.get("machine"))
    rows = {
        "step": f"{last.get('step', 0)} of {source.settings.get('steps')}",
        **source.live,
        "samples": f"{format_value(last.get('samples', 0), ',')} ({last.get('epoch', 0)} epochs)",
        "time": duration(last.get("seconds", 0)),
        "throughput": f"{format_value(last.get('samples_per_second'), '.4g')} samples per second",
        "waiting for data": f"{format_value(last.get('waiting'), '.0%')} of the time",
        "global batch": f"{about.get('global_batch')} on {about.get('processes')} process(es)",
        "device": str(machine.get("device", "not recorded")),
    }
    if best:
        value = format_value(best.get("value"), ".5g")
        rows["best checkpoint"] = f"{best.get('metric')} {value} at step {best.get('step')}"
    return rows

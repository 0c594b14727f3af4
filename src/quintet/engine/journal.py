"""Whether the reports and events of a run are whole: steps rise, and none that was due is lost."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

from quintet.engine.folder import RunFolder

RESUMED = re.compile(r"resuming at step (\d+);")
LOST = "restore it from a copy, or leave it: training does not read it, only curves lack something"


class Finding(NamedTuple):
    """Something about a run folder that a person should know."""

    where: str
    what: str
    repair: str
    fault: bool = True
    """Otherwise it is only a note."""


def note(where: object, what: str, repair: str = "nothing needs to be done") -> Finding:
    return Finding(str(where), what, repair, fault=False)


class Lines(NamedTuple):
    """A JSONL file: its objects that have a step, and the numbers of other lines."""

    records: list[dict[str, Any]]
    broken: list[int]
    cut: bool
    """Whether the last line was cut short by a kill; it is not among the broken ones."""


def read(path: Path) -> Lines:
    records: list[dict[str, Any]] = []
    broken: list[int] = []
    number, whole = 0, True
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                whole = line.endswith("\n")
                record = _parsed(line)
                records += [record] if record else []
                broken += [] if record else [number]
    cut = not whole and broken[-1:] == [number]
    return Lines(records, broken[:-1] if cut else broken, cut)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("step")) is int else None


def check(folder: RunFolder, newest: int, locked: bool) -> Iterator[Finding]:
    """`newest` is the step of the newest sound checkpoint, or 0."""
    metrics, events = read(folder.metrics), read(folder.events)
    for path, lines in ((folder.metrics, metrics), (folder.events, events)):
        yield from _check_lines(path, lines, folder, locked)
    said = [RESUMED.match(str(record.get("message"))) for record in events.records]
    resumed = sorted({int(match[1]) for match in said if match})
    reports = [record for record in metrics.records if type(record.get("samples")) is int]
    others = [record for record in metrics.records if "samples" not in record]
    for kind, records in (("reports", reports), ("evaluations", others)):
        yield from _check_rise(folder.metrics, kind, [r["step"] for r in records], resumed)
    yield from _check_samples(folder.metrics, reports)
    steps = [record["step"] for record in reports]
    yield from _check_gaps(folder, sorted(set(steps)), resumed, newest)
    if steps and steps[-1] > newest and not locked:
        what = f"reports reach step {steps[-1]}, the newest sound checkpoint is at {newest}"
        way = f"'quintet resume {folder.path}' takes the steps between again and drops the reports"
        yield note(folder.metrics, what, way)


def _check_lines(path: Path, lines: Lines, folder: RunFolder, locked: bool) -> Iterator[Finding]:
    if path.is_symlink():
        yield Finding(str(path), "it is a link, and a run writes only here", "put the file here")
    if lines.broken:
        what = f"{len(lines.broken)} lines are no reports, line {lines.broken[0]} is the first"
        way = f"'quintet resume {folder.path}' drops them; what they said is lost"
        yield Finding(str(path), what, way)
    if lines.cut and not locked:
        way = f"'quintet resume {folder.path}' drops it"
        yield note(path, "its last line was cut short by a kill", way)


def _check_rise(
    path: Path, kind: str, steps: Sequence[int], resumed: Sequence[int]
) -> Iterator[Finding]:
    """Steps rise; where they do not, a resume from before them may be why."""
    for before, step in pairwise(steps):
        if step > before:
            continue
        what = f"{kind} go back from step {before} to {step}"
        earlier = [again for again in resumed if again < step]
        if earlier:
            yield note(path, f"{what}: the run was resumed at step {earlier[-1]}")
        else:
            yield Finding(str(path), what, LOST)


def _check_samples(path: Path, reports: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    for before, after in pairwise(reports):
        if after["step"] > before["step"] and not after["samples"] > before["samples"]:
            what = f"samples do not rise from step {before['step']} to {after['step']}"
            yield Finding(str(path), what, LOST)
            return


def _check_gaps(
    folder: RunFolder, steps: Sequence[int], resumed: Sequence[int], newest: int
) -> Iterator[Finding]:
    """Between two resumes reports are at multiples of one number, and at the end of the run: one
    that is missing was lost."""
    settings = folder.about.get("settings")
    every = settings.get("log_every") if isinstance(settings, Mapping) else None
    starts = [0, *(step for step in resumed if 0 < step < newest)]
    lost: list[int] = []
    for begin, end in zip(starts, [*starts[1:], newest]):
        here = [step for step in steps if begin < step <= end]
        apart = every if end == newest else gcd(*here[:-1])
        if type(apart) is int and apart > 0:
            due = range((begin // apart + 1) * apart, end + 1, apart)
            lost += sorted(set(due) - set(here))
    if lost:
        what = f"{len(lost)} reports are missing, that of step {lost[0]} is the first"
        yield Finding(str(folder.metrics), what, LOST)

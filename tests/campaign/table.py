"""Cases of the campaign, the journal of finished ones, and the table of results."""

import json
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- campaign:begin -->", "<!-- campaign:end -->"
HEAD = "| fault | injected | survived | steps lost, most | seconds to recover, median / most |"


@dataclass(frozen=True)
class Result:
    """How one case ended."""

    survived: bool
    """The program resumed exactly, or stopped with a one-line error."""
    lost_steps: int | None = None
    """Repeated steps; None where no run was active."""
    seconds: float = 0.0
    """From the fault to full recovery, or to the error."""
    note: str = ""
    """What happened, and how to reproduce a failure."""
    faults: int = 1
    """Number of injected faults, counted in the table; 0 where none could be injected."""


@dataclass(frozen=True)
class Case:
    """One fault, or a batch of similar faults, against the real program."""

    name: str
    """Unique and stable: the key of the journal."""
    kind: str
    """Row of the table."""
    run: Callable[[], Result]
    """Inject the fault. An exception counts as a failure."""


class Journal:
    """One JSON line per finished case; an interrupted campaign continues from it."""

    def __init__(self, path: Path):
        self.path = path

    def records(self) -> dict[str, dict[str, Any]]:
        """By name; the last attempt of a case counts."""
        records: dict[str, dict[str, Any]] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # truncated by a kill: the case is run again
            records[record["name"]] = record
        return records

    def add(self, case: Case, result: Result) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {"name": case.name, "kind": case.kind, **asdict(result)}
        cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(("\n" if cut else "") + json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def pending(cases: Iterable[Case], journal: Journal, again: bool = False) -> Iterator[Case]:
    """Cases missing from the journal; with `again` also failed ones."""
    done = {n for n, r in journal.records().items() if r["survived"] or not again}
    return (case for case in cases if case.name not in done)


def table(records: Iterable[dict[str, Any]]) -> str:
    """Markdown table: one row per kind of fault, and a total."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        kinds.setdefault(record["kind"], []).append(record)
    rows = [_row(kind, group) for kind, group in sorted(kinds.items())]
    every = [record for group in kinds.values() for record in group]
    return "\n".join([HEAD, "|---|---:|---:|---:|---:|", *rows, _row("**all**", every)])


def _row(kind: str, group: list[dict[str, Any]]) -> str:
    injected = sum(r["faults"] for r in group)
    survived = sum(r["faults"] for r in group if r["survived"])
    lost = [r["lost_steps"] for r in group if r["lost_steps"] is not None]
    seconds = [r["seconds"] for r in group]
    spent = f"{statistics.median(seconds):.1f} / {max(seconds):.1f}" if seconds else "–"
    return f"| {kind} | {injected:,} | {survived:,} | {max(lost) if lost else '–'} | {spent} |"


def insert_table(page: Path, text: str) -> None:
    """Replace the text between the two markers of a page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")

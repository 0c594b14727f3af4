"""What a case of the campaign is, the journal of those that are done, and the table of them."""

import json
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- torture:begin -->", "<!-- torture:end -->"
HEAD = "| fault | injected | survived | steps lost, most | seconds to recover, median / most |"


@dataclass(frozen=True)
class Result:
    """How one case ended."""

    survived: bool
    """The program did what it promises: went on exactly, or refused with a sentence."""
    lost_steps: int | None = None
    """Steps that had to be taken again; None where nothing was under way."""
    seconds: float = 0.0
    """From the fault to the program's being whole again, or to its refusal."""
    note: str = ""
    """A sentence: what happened, and how to see it again where it failed."""
    faults: int = 1
    """How many faults the case injected, each of which counts in the table; 0 where none could."""


@dataclass(frozen=True)
class Case:
    """One fault, or one batch of like faults, against the real program."""

    name: str
    """Unique and stable: the journal knows a finished case by it."""
    kind: str
    """The row of the table that it counts in."""
    run: Callable[[], Result]
    """Injects the fault. An exception counts as not survived."""


class Journal:
    """A line of JSON for each finished case; a campaign that is interrupted goes on from it."""

    def __init__(self, path: Path):
        self.path = path

    def records(self) -> dict[str, dict[str, Any]]:
        """By name; a case that was run again counts as it ended last."""
        found: dict[str, dict[str, Any]] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut short by a kill: the case is run again
            found[record["name"]] = record
        return found

    def add(self, case: Case, result: Result) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {"name": case.name, "kind": case.kind, **asdict(result)}
        cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(("\n" if cut else "") + json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def waiting(cases: Iterable[Case], journal: Journal, again: bool = False) -> Iterator[Case]:
    """The cases that the journal does not know; with `again` also those that did not survive."""
    done = {n for n, r in journal.records().items() if r["survived"] or not again}
    return (case for case in cases if case.name not in done)


def table(records: Iterable[dict[str, Any]]) -> str:
    """A Markdown table: a row for each kind of fault, and a last one for all of them."""
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


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the two marks of a page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")

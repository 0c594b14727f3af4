"""The campaign of faults: its short form is survived, and its journal and table are true."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.torture.__main__ import main
from benchmarks.torture.table import (
    BEGIN,
    END,
    Case,
    Journal,
    Result,
    put_into,
    table,
    waiting,
)

ROOT = Path(__file__).parent.parent.parent


def campaign(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.torture", "--out", str(out), *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_short_campaign_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve kills, broken disks, forged files and jumping clocks, against real processes; the
    campaign itself runs in this one."""
    words = ["--out", str(tmp_path), "--only", "kills", "disk", "state", "clock"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.torture", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().out
    assert not ended.value.code, said
    records = Journal(tmp_path / "short.jsonl").records().values()
    assert sum(r["faults"] for r in records if r["kind"].startswith("SIG")) == 12
    assert all(record["survived"] for record in records)
    assert "| **all** |" in said


# -- the journal ----------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "deep" / "journal.jsonl")


def case(name: str, survived: bool = True, kind: str = "a kind") -> Case:
    return Case(name, kind, lambda: Result(survived, 2, 1.5, "a note", 3))


def names(cases: Iterator[Case]) -> list[str]:
    return [case.name for case in cases]


def test_a_campaign_goes_on_with_what_is_not_in_its_journal(journal: Journal) -> None:
    every = [case("one"), case("two"), case("three")]
    assert names(waiting(every, journal)) == ["one", "two", "three"]
    journal.add(every[1], every[1].run())
    assert names(waiting(every, journal)) == ["one", "three"]


def test_a_case_whose_line_was_cut_short_is_run_again(journal: Journal) -> None:
    every = [case("one"), case("two")]
    for each in every:
        journal.add(each, each.run())
    text = journal.path.read_text()
    journal.path.write_text(text[:-20])
    assert names(waiting(every, journal)) == ["two"]
    journal.add(every[1], every[1].run())
    assert names(waiting(every, journal)) == []


def test_a_failed_case_is_run_again_only_when_asked(journal: Journal) -> None:
    failed = case("one", survived=False)
    journal.add(failed, failed.run())
    assert names(waiting([failed], journal)) == []
    assert names(waiting([failed], journal, again=True)) == ["one"]
    journal.add(failed, Result(True))
    assert names(waiting([failed], journal, again=True)) == []
    assert [r["survived"] for r in journal.records().values()] == [True]


# -- the table ------------------------------------------------------------------------------


def record(**changes: Any) -> dict[str, Any]:
    plain = {"kind": "a kind", "survived": True, "lost_steps": None, "seconds": 1.0, "faults": 1}
    return {**plain, **changes}


def test_the_table_counts_every_fault_and_hides_no_failure() -> None:
    rows = table(
        [
            record(faults=7, lost_steps=2, seconds=1.0),
            record(faults=5, lost_steps=4, seconds=3.0, survived=False),
            record(kind="another", seconds=9.0),
        ]
    ).splitlines()
    assert rows[2:] == [
        "| a kind | 12 | 7 | 4 | 2.0 / 3.0 |",
        "| another | 1 | 1 | – | 9.0 / 9.0 |",
        "| **all** | 13 | 8 | 4 | 3.0 / 9.0 |",
    ]


def test_the_table_is_put_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_into(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="lacks the marks"):
        put_into(page, "new")
    assert page.read_text() == "no marks\n"


def test_the_table_is_written_from_the_journal_by_the_program(
    journal: Journal, tmp_path: Path
) -> None:
    journal.add(case("one", kind="a fault"), Result(True, 1, 0.5, "", 4))
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    words = ("--table", "--journal", str(journal.path), "--page", str(page))
    assert campaign(tmp_path, *words).returncode == 0
    assert "| a fault | 4 | 4 | 1 | 0.5 / 0.5 |" in page.read_text()


def test_a_page_of_the_journal_is_json(journal: Journal) -> None:
    journal.add(case("one"), Result(True, None, 0.5, "a note"))
    assert json.loads(journal.path.read_text())["note"] == "a note"

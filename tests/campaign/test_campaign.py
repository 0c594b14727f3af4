"""The fault-injection campaign: the short one is survived; journal and table are correct."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign import subjects
from campaign.__main__ import _cases, main
from campaign.table import (
    BEGIN,
    END,
    Case,
    Journal,
    Result,
    insert_table,
    pending,
    table,
)


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`python -m campaign`, in this process."""

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["campaign", "--out", str(tmp_path), *words])
        monkeypatch.setattr(subjects, "FOLDER", subjects.FOLDER)  # set by --out
        main()

    return call


# Left to the slow tests: what other tests do to a run as well.
ELSEWHERE = (
    "kills: music/mulan_tiny, SIGKILL",  # another recipe is killed so
    "kills: mesh/autoencoder_tiny, SIGKILL, two processes",  # engine/test_resume.py
    "kills: mesh/autoencoder_tiny, SIGTERM, two processes",  # engine/machine/test_signals.py
    "kills: music/mulan_tiny, SIGINT",  # test_stops.py
    "mishap: a longer run",  # engine/test_resume.py
    "mishap: a terminal that is gone",  # test_stops.py
    "mishap: changed data",  # test_stops.py
    "mishap: changed captions",  # image/maskgit/test_maskgit.py
    "mishap: few captions",  # image/maskgit/test_maskgit.py
    "mishap: validation on training data",  # media/test_held_out.py, end_to_end/test_cli.py
    "mishap: outputs among the data",  # end_to_end/test_cli.py
    "mishap: a renamed copy of the training data",  # end_to_end/test_cli.py, test_compare.py
    "mishap: validation data breaks",  # test_stops.py
    "mishap: a pipe without a reader",  # test_stops.py
    "mishap: a step that is not finite",  # test_stops.py
    "disk: full disk, from the start",  # test_stops.py, where it is full later
    "disk: read-only disk, at a resume",  # engine/machine/test_signals.py
    "disk: vanished folder, step 2",  # engine/machine/test_signals.py
    "state: files swapped, swap (",  # engine/runs/test_verify.py
    "state: truncation, cut",  # engine/runs/test_verify.py; flipped bits are noticed alike
    "state: checkpoints of another recipe or version, another_recipe",  # another_version
    "state: reports and best.json, broken_report",  # report/test_page.py
    "disk: two runs in one folder, second",  # engine/runs/test_folder.py
    "stores: chain 0, 2 kills",  # one of them, which a machine without the folder resumes
    "clock: resumed 5 times",  # contract/test_recipes.py
    "clock: a machine asleep",  # waits for seconds; a clock that leaps looks the same to a run
)
MODULES = ("kills", "mishaps", "disk", "state", "clock", "stores")
SHORT = [
    pytest.param(
        case, id=case.name, marks=pytest.mark.slow if case.name.startswith(ELSEWHERE) else ()
    )
    for case in _cases(MODULES, full=False, seed=0)
]


@pytest.mark.parametrize("case", SHORT)
def test_the_short_campaign_is_survived(case: Case) -> None:
    """Kills, broken disks, forged files and jumping clocks, against real processes."""
    result = case.run()
    assert result.survived, result.note
    if case.kind.startswith("SIG"):
        assert result.faults >= 2


def test_the_command_runs_and_sums_up_its_cases(
    tmp_path: Path, campaign: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        campaign("--only", "state", "--match", "bad configurations")
    said = capsys.readouterr().out
    assert not ended.value.code, said
    records = list(Journal(tmp_path / "short.jsonl").records().values())
    assert len(records) == 5
    assert all(record["survived"] for record in records)
    assert "| **all** | 5 | 5 |" in said


# -- the journal ----------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "deep" / "journal.jsonl")


def case(name: str, survived: bool = True, kind: str = "a kind") -> Case:
    return Case(name, kind, lambda: Result(survived, 2, 1.5, "a note", 3))


def names(cases: Iterator[Case]) -> list[str]:
    return [case.name for case in cases]


def test_a_campaign_continues_with_cases_missing_from_its_journal(journal: Journal) -> None:
    every = [case("one"), case("two"), case("three")]
    assert names(pending(every, journal)) == ["one", "two", "three"]
    journal.add(every[1], every[1].run())
    assert names(pending(every, journal)) == ["one", "three"]


def test_a_case_with_a_truncated_line_is_run_again(journal: Journal) -> None:
    every = [case("one"), case("two")]
    for each in every:
        journal.add(each, each.run())
    text = journal.path.read_text()
    journal.path.write_text(text[:-20])
    assert names(pending(every, journal)) == ["two"]
    journal.add(every[1], every[1].run())
    assert names(pending(every, journal)) == []


def test_a_failed_case_is_retried_only_on_request(journal: Journal) -> None:
    failed = case("one", survived=False)
    journal.add(failed, failed.run())
    assert names(pending([failed], journal)) == []
    assert names(pending([failed], journal, again=True)) == ["one"]
    journal.add(failed, Result(True))
    assert names(pending([failed], journal, again=True)) == []
    assert [r["survived"] for r in journal.records().values()] == [True]


# -- the table ------------------------------------------------------------------------------


def record(**changes: Any) -> dict[str, Any]:
    plain = {"kind": "a kind", "survived": True, "lost_steps": None, "seconds": 1.0, "faults": 1}
    return {**plain, **changes}


def test_the_table_counts_every_fault_and_failure() -> None:
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


def test_the_table_replaces_only_the_text_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    insert_table(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="lacks the markers"):
        insert_table(page, "new")
    assert page.read_text() == "no marks\n"


def test_the_command_writes_the_table_from_the_journal(
    journal: Journal, tmp_path: Path, campaign: Callable[..., None]
) -> None:
    journal.add(case("one", kind="a fault"), Result(True, 1, 0.5, "", 4))
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    campaign("--table", "--journal", str(journal.path), "--page", str(page))
    assert "| a fault | 4 | 4 | 1 | 0.5 / 0.5 |" in page.read_text()


def test_the_journal_is_json_lines(journal: Journal) -> None:
    journal.add(case("one"), Result(True, None, 0.5, "a note"))
    assert json.loads(journal.path.read_text())["note"] == "a note"

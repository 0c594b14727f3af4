"""Reading a run again and again: every line once, whatever happens to the file."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from watched import make_run, report, write

from quintet.engine.runs.folder import RunFolder
from quintet.report.curves import MAX_POINTS
from quintet.watch.reader import CHUNK, Follower, Journal, Thinned, new_points


def steps(journal: Journal, since: int = 0) -> list[int]:
    journal.read()
    return [record["step"] for record in journal.since(since)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_only_new_lines_follow_an_offset(path: Path) -> None:
    journal = Journal(path)
    write(path, report(1), report(2))
    assert steps(journal) == [1, 2]
    at = journal.tail.offset
    write(path, report(2, **{"val/psnr": 9.0}))
    assert steps(journal, at) == [2]
    assert steps(journal, journal.tail.offset) == []
    assert steps(journal) == [1, 2, 2]


def test_a_line_that_is_being_written_is_read_once_it_ends(path: Path) -> None:
    journal = Journal(path)
    line = json.dumps(report(2)) + "\n"
    write(path, report(1))
    for piece in (line[:9], line[9:30], line[30:]):
        assert steps(journal) == [1]
        with open(path, "a") as file:
            file.write(piece)
    assert steps(journal) == [1, 2]


def test_a_line_that_a_kill_cut_is_passed_over(path: Path) -> None:
    journal = Journal(path)
    write(path, report(1))
    with open(path, "a") as file:
        file.write('{"step": 2, "va')
    assert steps(journal) == [1]
    RunFolder(path.parent).append(path, report(2))  # as a resumed run does
    assert steps(journal) == [1, 2]


def test_a_resume_that_cuts_reports_starts_anew(path: Path) -> None:
    journal = Journal(path)
    write(path, *map(report, range(1, 9)))
    assert steps(journal) == [*range(1, 9)]
    before = journal.generation
    RunFolder(path.parent).forget_after(5)
    assert steps(journal) == [1, 2, 3, 4, 5]
    assert journal.generation != before


def test_a_file_rewritten_in_place_with_the_same_length_is_noticed(path: Path) -> None:
    journal = Journal(path)
    write(path, report(1), report(2))
    assert steps(journal) == [1, 2]
    write(path, report(3), report(4), mode="w")
    assert steps(journal) == [3, 4]


def test_reports_of_a_run_that_starts_over_are_forgotten(path: Path) -> None:
    journal = Journal(path)
    write(path, report(1))
    assert steps(journal) == [1]
    path.unlink()
    assert steps(journal) == []


def test_a_line_without_an_end_is_dropped_in_pieces(path: Path) -> None:
    journal = Journal(path)
    path.write_bytes(b"[" * (2 * CHUNK + 5))
    assert steps(journal) == []
    write(path, "", report(1))
    assert steps(journal) == [1]


@pytest.mark.parametrize("line", ["null", "3", "{", "[" * 3000, '{"step": "x"}', "\x00"])
def test_a_damaged_line_has_no_points(line: str, path: Path) -> None:
    journal = Journal(path)
    path.write_text(f"{line}\n")
    write(path, report(1))
    journal.read()
    assert new_points(journal.since(0))["vae/loss"] == ([1], [1.0])


def test_a_link_is_not_followed(path: Path) -> None:
    write(path.parent / "secret", report(1))
    path.symlink_to(path.parent / "secret")
    assert steps(Journal(path)) == []


def test_any_number_of_records_is_kept_thinned_with_the_last() -> None:
    thinned = Thinned(limit=4)
    for step in range(100):
        thinned.add(step, json.dumps({"step": step}).encode())
        found = [record["step"] for _, record in thinned.since(0)]
        assert len(found) <= 9
        assert found[0] == 0
        assert found[-1] == step
        gaps = {b - a for a, b in pairwise(found[:-1])}
        assert len(gaps) <= 1


def test_a_hundred_thousand_reports_fit_on_a_page(path: Path) -> None:
    line = json.dumps(report(7)).replace("7", "%d", 1) + "\n"
    evaluation = json.dumps({"step": 7, "val/psnr": 1.0}) + "\n"
    path.write_text("".join(line % step for step in range(100_000)) + evaluation)
    journal = Journal(path)
    found = steps(journal)
    assert MAX_POINTS <= len(found) <= 2 * MAX_POINTS + 2
    assert found[-2:] == [99_999, 7]
    at = journal.tail.offset
    write(path, report(100_000))
    assert steps(journal, at) == [100_000]


def test_a_follower_keeps_what_it_knows_of_a_vanished_run(tmp_path: Path) -> None:
    run, away = make_run(tmp_path / "run"), tmp_path / "away"
    write(run / "metrics.jsonl", report(1))
    write(run / "events.jsonl", {"step": 1, "message": "health: odd"})
    follower = Follower(run, "run")
    assert [r["step"] for r in follower.read().reports] == [1]
    run.rename(away)
    gone = follower.read()
    assert follower.missing
    assert (len(gone.reports), len(gone.events), gone.recipe) == (1, 1, "image/vqgan_tiny")
    shutil.copytree(away, run)
    write(run / "metrics.jsonl", report(2))
    assert [r["step"] for r in follower.read().reports] == [1, 2]
    assert len(follower.read().events) == 1
    assert not follower.missing

"""Rows that are made once."""

import fcntl
import os
import pickle
import signal
import time

import numpy as np
import pytest

from quintet.engine.data import shared_rows
from quintet.engine.data.shared_rows import SharedRows

ROW = np.array([3, -1, 0, 7], np.int16)


def test_a_row_that_was_made_is_kept():
    rows = SharedRows([6] * 5)
    assert rows.get(2) is None
    assert rows.put(2, ROW) is ROW
    with pytest.raises(ValueError, match="read-only"):
        rows.get(2)[:] = 0
    assert rows.get(2).tolist() == ROW.tolist()
    assert rows.get(1) is None


def test_rows_have_their_own_capacities():
    rows = SharedRows([4, 0, 3, 4], np.float32)
    for index in range(4):
        rows.put(index, ROW / 2)
    kept = [rows.get(index) for index in range(4)]
    assert kept[1] is kept[2] is None  # too long for them, and they spoil no other
    assert kept[0].tolist() == kept[3].tolist() == [1.5, -0.5, 0, 3.5]


def test_a_row_of_a_forked_process_is_seen_by_the_others():
    rows = SharedRows([6] * 5)
    child = os.fork()
    if not child:
        rows.put(4, ROW)
        os._exit(0)
    os.waitpid(child, 0)
    assert rows.get(4).tolist() == ROW.tolist()


@pytest.mark.parametrize("killed", [False, True])
def test_a_row_is_read_after_its_writer_is_done_with_it_or_dead(killed: bool) -> None:
    rows = SharedRows([6] * 5)
    begun, written = os.pipe()
    child = os.fork()
    if not child:
        with rows._locked(4, fcntl.LOCK_EX):
            rows._lengths[4] = len(ROW)  # as another process may see it before the numbers
            os.write(written, b"x")
            time.sleep(30 if killed else 0.2)
            rows._values[24:28] = ROW
        os._exit(0)
    os.read(begun, 1)
    if killed:
        os.kill(child, signal.SIGKILL)
    row = rows.get(4)
    os.waitpid(child, 0)
    assert row.tolist() == ([0] * 4 if killed else ROW.tolist())


def test_reading_a_row_again_takes_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SharedRows([6] * 5)
    rows.put(4, ROW)
    rows.get(4)
    monkeypatch.delattr(fcntl, "lockf")
    assert rows.get(4).tolist() == ROW.tolist()
    assert rows.get(3) is None


def test_another_kind_of_process_makes_its_own():
    rows = SharedRows([6] * 5)
    rows.put(1, ROW)
    other = pickle.loads(pickle.dumps(rows))
    assert other.get(1) is None
    assert other.put(1, ROW) is ROW
    assert other.get(1) is not None


def test_nothing_is_kept_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(shared_rows.memory, "available", lambda: 100)
    rows = SharedRows([6] * 5)
    assert rows.put(1, ROW) is ROW
    assert rows.get(1) is None
    monkeypatch.setattr(shared_rows.memory, "available", lambda: 400)
    rows = SharedRows([6] * 5)
    workers = pickle.loads(pickle.dumps(rows))  # not shared: each would have its own
    for each in (rows, workers):
        each.put(1, ROW)
    assert rows.get(1) is not None
    assert workers.get(1) is None


def test_the_first_rows_are_kept_where_memory_is_short_for_all(monkeypatch):
    monkeypatch.setattr(shared_rows.memory, "available", lambda: 150)  # 37 bytes are taken
    rows = SharedRows([0, 6, 6, 6, 6, 0], partly=True)
    assert [rows.keeps(index) for index in range(6)] == [True] * 4 + [False] * 2
    for index in range(1, 5):
        assert rows.put(index, ROW) is ROW
    assert [rows.get(index) is not None for index in range(6)] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert not pickle.loads(pickle.dumps(rows)).keeps(1)


def test_a_row_is_written_in_place_and_complete_after_that():
    rows = SharedRows([6] * 3)
    rows.space(1)[:2] = ROW[:2]
    assert rows.get(1) is None
    rows.complete(1, 2)
    assert rows.get(1).tolist() == ROW[:2].tolist()

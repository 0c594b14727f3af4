"""Rows that are made once."""

import os
import pickle

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

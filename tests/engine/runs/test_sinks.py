import math
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder, read_lines
from quintet.engine.runs.sinks import (
    Callback,
    Journal,
    Progress,
    TensorBoard,
    brief,
    numbers,
    trackers,
)

RECORD = {"step": 10, "net/loss": 0.5, "order": "ab", "val/bad": math.nan, "none": None}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"recipe": "toy"})


def test_the_journal_keeps_reports_and_events(folder):
    journal = Journal(folder)
    journal.report(RECORD)
    journal.event(11, "a sentence")
    journal.exhibits(11, [])
    journal.close()
    assert read_lines(folder.metrics) == [{**RECORD, "val/bad": None}]
    assert read_lines(folder.events) == [{"step": 11, "message": "a sentence"}]


def test_a_callback_is_given_a_copy_of_each_report():
    found = []
    sink = Callback(found.append)
    record = dict(RECORD)
    sink.report(record)
    found[0]["step"] = 99
    assert record == RECORD
    sink.event(1, "nothing to it")
    sink.exhibits(1, [])
    sink.close()
    assert len(found) == 1


def test_only_numbers_go_to_trackers():
    assert set(numbers(RECORD)) == {"net/loss", "val/bad"}


def test_tensorboard_holds_the_numbers_at_their_steps(folder):
    (sink,) = trackers(["tensorboard"], folder)
    assert isinstance(sink, TensorBoard)
    for step in (10, 20):
        sink.report({"step": step, "net/loss": step / 2, "order": "text"})
    sink.event(20, "a sentence")
    sink.close()
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("net/loss")] == [(10, 5.0), (20, 10.0)]
    assert events.Tags()["scalars"] == ["net/loss"]


def missing(name: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as python itself marks what cannot be imported


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra(folder, monkeypatch, name):
    missing(name, monkeypatch)
    with pytest.raises(RunError, match=rf"'{name}' is not installed.*quintet\[{name}\]"):
        trackers([name], folder)


def test_tensorboard_is_optional(folder, monkeypatch):
    missing("torch.utils.tensorboard", monkeypatch)
    assert trackers(["tensorboard"], folder) == []


TRACKER = """
calls = []
def init(**settings): calls.append(("init", settings))
def log(numbers, step=None): calls.append(("log", numbers, step))
def finish(): calls.append(("finish",))
"""


def test_a_tracker_receives_the_step_of_each_report(folder, tmp_path, monkeypatch):
    (tmp_path / "trackio.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    (sink,) = trackers(["trackio"], folder)
    sink.report({"step": 10, "net/loss": 0.5})
    sink.close()
    calls = sys.modules["trackio"].calls
    monkeypatch.delitem(sys.modules, "trackio")
    assert calls[0][1]["config"] == folder.about
    assert calls[1][1]["net/loss"] == 0.5
    assert calls[1][2] == 10 or calls[1][1].get("step") == 10
    assert calls[2] == ("finish",)


def test_progress_prints_lines_without_a_terminal(capfd):
    sink = Progress("toy", 20, lambda: 0)
    sink.report({"step": 10, "net/loss": 0.5, "samples_per_second": 100.0, "waiting": 0.25})
    sink.event(10, "skipped [bold]x[/bold].png")
    sink.report({"step": 20, "net/loss": 0.25})
    sink.close()
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "step 10/20" in shown.err
    assert "net/loss 0.5" in shown.err
    assert "waiting 25%" in shown.err
    assert "skipped [bold]x[/bold].png" in shown.err  # names of files are not markup
    assert "step 20/20" in shown.err


def test_names_in_a_report_are_not_markup(capfd):
    sink = Progress("toy", 20, lambda: 0)
    sink.report({"step": 20, "[/red]/loss": 0.5})
    assert "[/red]/loss 0.5" in capfd.readouterr().err


def test_the_brief_shows_losses_and_measures():
    assert brief({"step": 1, "net/loss": 0.5, "net/norm": 3.0, "val/error": 0.25}) == (
        "net/loss 0.5  error 0.25"
    )


def test_sinks_receive_no_tensors(folder):
    with pytest.raises(TypeError):
        Journal(folder).report({"step": 1, "loss": torch.tensor(1.0)})

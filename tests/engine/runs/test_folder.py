import errno
import json
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder, finite, read_lines
from quintet.files import write_json

NOBODY = 65534


def in_child(work, *, user: int | None = None) -> str:
    """Run `work` in a forked process, as another user if asked; what it raised, or 'nothing'."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if user is not None:
                os.setgid(user)
                os.setuid(user)
            work()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def as_nobody(work) -> str:
    """Root may write anywhere; permissions only bind somebody else."""
    return in_child(work, user=NOBODY if os.geteuid() == 0 else None)


# -- the lock -------------------------------------------------------------------------------


def test_a_folder_is_held_while_its_process_lives_and_free_once_it_is_killed(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        RunFolder.create(tmp_path / "run", {})
        os.write(writer, b"held")
        threading.Event().wait()
    try:
        assert os.read(reader, 4) == b"held"
        folder = RunFolder.open(tmp_path / "run")
        with pytest.raises(RunError, match="being trained by another process"):
            folder.lock()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    folder.lock()
    folder.unlock()


def test_an_unlocked_folder_can_be_locked_by_another_process(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {})

    def take():
        RunFolder.open(tmp_path / "run").lock()

    assert "being trained" in in_child(take)
    folder.unlock()
    assert in_child(take) == "nothing"
    folder.unlock()  # twice does no harm


def test_an_unwritable_lock_is_an_error(tmp_path_factory):
    folder = RunFolder.create(public(tmp_path_factory) / "run", {})
    folder.unlock()
    (folder.path / ".lock").unlink()
    folder.path.chmod(0o555)
    said = as_nobody(RunFolder.open(folder.path).lock)
    assert said.startswith("RunError")
    assert str(folder.path) in said


def public(tmp_path_factory) -> Path:
    """A folder that another user can reach: pytest's own are closed to others."""
    folder = tmp_path_factory.mktemp("public")
    for parent in (folder, *folder.parents):
        if parent == Path("/tmp") or parent.stat().st_uid != os.geteuid():
            break
        parent.chmod(0o755)
    return folder


# -- a new run ------------------------------------------------------------------------------


def test_a_new_run_writes_its_configuration_and_an_id_of_its_own(tmp_path):
    first = RunFolder.create(tmp_path / "deep" / "one", {"recipe": "toy"})
    second = RunFolder.create(tmp_path / "two", {"recipe": "toy"})
    assert RunFolder.open(first.path).about == first.about
    assert first.about["recipe"] == "toy"
    assert first.id
    assert first.id != second.id
    assert first.checkpoints.is_dir()
    assert first.steps() == []


def test_an_empty_folder_is_accepted(tmp_path):
    assert RunFolder.create(tmp_path, {}).path == tmp_path


def test_an_existing_run_is_refused_naming_resume(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"recipe": "toy"})
    folder.unlock()
    before = (folder.path / "config.json").read_bytes()
    with pytest.raises(RunError, match=f"quintet resume {folder.path}"):
        RunFolder.create(folder.path, {})
    assert (folder.path / "config.json").read_bytes() == before


def started(path: Path) -> RunFolder:
    """A run that has reported one step and was killed, beside a file of the user's."""
    folder = RunFolder.create(path, {"recipe": "toy", "settings": {}})
    folder.append(folder.metrics, {"step": 3})
    (path / "notes.txt").write_text("mine")
    folder.unlock()
    return folder


def test_a_run_without_a_checkpoint_is_started_over(tmp_path):
    folder = started(tmp_path / "run")
    again = RunFolder.create(folder.path, {"recipe": "other", "settings": {}})
    assert again.restarted
    assert not folder.restarted
    assert again.about["recipe"] == "other"
    assert again.id != folder.id
    assert not again.metrics.exists()
    assert (again.path / "notes.txt").read_text() == "mine"


def test_a_run_without_a_checkpoint_is_not_started_over_while_it_trains(tmp_path):
    folder = started(tmp_path / "run")
    folder.lock()
    assert "being trained" in in_child(lambda: RunFolder.create(folder.path, {}))
    assert read_lines(folder.metrics) == [{"step": 3}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checkpoints/step-00000002/state.json", "damaged, but a checkpoint"),
        ("best.json", '{"step": 2}'),  # its checkpoints were removed by hand
        ("config.json", '{"model": "image/vqgan", "config": {}}'),
        ("config.json", "not JSON"),
    ],
)
def test_what_may_be_more_than_a_failed_start_is_refused(tmp_path, name, content):
    folder = started(tmp_path / "run")
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).write_text(content)
    with pytest.raises(RunError, match="already holds a run"):
        RunFolder.create(folder.path, {})
    assert read_lines(folder.metrics) == [{"step": 3}]


@pytest.mark.parametrize("foreign", ["thesis.tex", "checkpoints/step-00000001/state.json"])
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path, foreign):
    (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / foreign).write_text("precious")
    with pytest.raises(RunError, match="not a run of Quintet"):
        RunFolder.create(tmp_path, {})
    assert (tmp_path / foreign).read_text() == "precious"
    assert not (tmp_path / "config.json").exists()


def test_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match="not a run of Quintet"):
        RunFolder.create(tmp_path / "run", {})


def test_a_parent_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", {})


def test_an_unwritable_parent_is_an_error(tmp_path_factory):
    parent = public(tmp_path_factory)
    parent.chmod(0o555)
    said = as_nobody(lambda: RunFolder.create(parent / "run", {}))
    assert said.startswith("RunError")
    assert "Permission denied; choose a writable --run" in said


def test_a_parent_without_permission_is_an_error(tmp_path_factory):
    parent = public(tmp_path_factory)
    parent.chmod(0o000)
    said = as_nobody(lambda: RunFolder.create(parent / "run", {}))
    assert said.startswith("RunError")
    assert str(parent) in said


def test_a_start_that_was_killed_immediately_can_be_repeated(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".config.json.writing").write_text('{"half')
    RunFolder.create(tmp_path, {"recipe": "toy"})
    assert json.loads((tmp_path / "config.json").read_text())["recipe"] == "toy"


def test_a_start_on_a_full_disk_is_an_error_and_can_be_repeated(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "ignored")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        RunFolder.create(tmp_path / "run", {})
    monkeypatch.undo()
    RunFolder.create(tmp_path / "run", {})  # the lock was let go of


def test_what_is_no_run_is_not_opened(tmp_path):
    with pytest.raises(RunError, match=r"holds no config\.json"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_configuration_is_an_error(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json"):
        RunFolder.open(tmp_path)


def test_the_best_is_remembered(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    assert folder.best() is None
    write_json(folder.path / "best.json", {"step": 30, "metric": "error", "value": 0.5})
    assert folder.best() == {"step": 30, "metric": "error", "value": 0.5}


# -- reports --------------------------------------------------------------------------------


def test_reports_after_a_step_are_dropped_with_truncated_lines(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    for step in (0, 10, 20, 30):
        folder.append(folder.metrics, {"step": step, "loss": 1.0})
        folder.append(folder.events, {"step": step, "message": "ü\u2028\n"})
    for path in (folder.metrics, folder.events):
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"step": 5, "lo')
    folder.forget_after(20)
    for path in (folder.metrics, folder.events):
        assert [record["step"] for record in read_lines(path)] == [0, 10, 20]
        assert path.read_text().endswith("}\n")
    assert read_lines(folder.events)[1]["message"] == "ü\u2028\n"


def test_dropping_reports_of_an_empty_run_does_nothing(tmp_path):
    RunFolder.create(tmp_path, {}).forget_after(3)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_record_after_a_truncated_line_is_not_lost(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    folder.events.write_text('{"step": 5, "mess')
    folder.append(folder.events, {"step": 6, "message": "resuming"})
    assert read_lines(folder.events) == [{"step": 6, "message": "resuming"}]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_report_on_a_full_disk_is_an_error(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    with pytest.raises(RunError, match="No space left"):
        folder.append(Path("/dev/full"), {"step": 1})


def test_a_resume_leaves_no_bare_nan_in_the_reports(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {})
    folder.metrics.write_text('{"step": 1, "loss": NaN}\n{"step": 2}\n')
    folder.forget_after(1)
    assert folder.metrics.read_text() == '{"step": 1, "loss": null}\n'


def test_what_is_not_finite_becomes_null(tmp_path):
    folder = RunFolder.create(tmp_path, {})
    record = {"a": math.nan, "b": math.inf, "c": {"d": -math.inf, "e": 1.5}, "f": "NaN", "g": 2}
    folder.append(folder.metrics, record)
    assert read_lines(folder.metrics) == [
        {"a": None, "b": None, "c": {"d": None, "e": 1.5}, "f": "NaN", "g": 2}
    ]


@given(
    st.recursive(
        st.floats() | st.integers() | st.text(max_size=3) | st.none(),
        lambda inside: (
            st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=2), inside, max_size=3)
        ),
        max_leaves=6,
    )
)
@example([math.nan])
@example({"a": [{"b": math.inf}]})
def test_whatever_is_reported_is_strict_json(value):
    json.loads(json.dumps(finite({"value": value}), allow_nan=False))


@pytest.mark.parametrize("stop", [signal.SIGSTOP, None], ids=["stopped", "running"])
def test_the_lock_dies_with_the_process_that_took_it_whatever_its_children_do(
    stop: int | None, tmp_path: Path
) -> None:
    RunFolder.create(tmp_path / "run", {}).unlock()
    reader, writer = os.pipe()
    main = os.fork()
    if main == 0:
        RunFolder.open(tmp_path / "run").lock()
        worker = os.fork()
        if worker == 0:
            os.write(writer, f"{os.getpid()} ".encode())
            time.sleep(60)
            os._exit(0)
        time.sleep(60)
    worker = int(os.read(reader, 16))
    try:
        with pytest.raises(RunError, match="being trained by another process"):
            RunFolder.open(tmp_path / "run").lock()
        if stop:
            os.kill(worker, stop)
        os.kill(main, signal.SIGKILL)
        os.waitpid(main, 0)
        folder = RunFolder.open(tmp_path / "run")
        folder.lock()
        folder.unlock()
    finally:
        os.kill(worker, signal.SIGKILL)

import errno
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from quintet.engine.errors import RunError
from quintet.engine.runs import checkpoint
from quintet.engine.runs.checkpoint import (
    Writer,
    examine,
    newest_intact,
    path_of,
    read,
    read_about,
    retain,
    snapshot,
    steps_in,
    write,
    write_safetensors,
)
from quintet.files import digest_of, partial_name, remove_partial

DTYPES = list(checkpoint.TYPES)


def state(value: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "net": {"weight": torch.full((3, 2), value), "bias": torch.arange(3)},
        "net.optim": {"step": torch.tensor(value)},
    }


def put(folder, step: int, run: str = "me", value: float = 1.0):
    return write(folder, step, state(value), {"run": run, "samples": 10 * step})


# -- tensors --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (3, 5)], ids=str)
def test_every_type_and_shape_is_read_back_equal(tmp_path, dtype, shape):
    tensor = (torch.randn(shape) * 5).to(dtype)
    digest = write_safetensors(
        tmp_path / "x", {"odd": torch.ones(3, dtype=torch.bool), "x": tensor}
    )
    found = load_file(tmp_path / "x")["x"]
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    assert torch.equal(found, tensor)
    assert digest == digest_of(tmp_path / "x")


@pytest.mark.parametrize("name", ["a", "block.0.weight", "exp_avg/ü ", '"quoted"\n', "x" * 300])
def test_any_name_is_read_back(tmp_path, name):
    write_safetensors(tmp_path / "x", {name: torch.ones(2)})
    assert list(load_file(tmp_path / "x")) == [name]


def test_views_are_written_as_they_look(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    views = {"t": base.t(), "part": base[1:3, ::2], "wide": torch.ones(1).expand(5)}
    write_safetensors(tmp_path / "x", views)
    for name, tensor in load_file(tmp_path / "x").items():
        assert torch.equal(tensor, views[name])


def test_tensors_larger_than_a_chunk_are_written_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK", 1000)
    tensor = torch.randn(999)
    digest = write_safetensors(tmp_path / "x", {"x": tensor})
    assert torch.equal(load_file(tmp_path / "x")["x"], tensor)
    assert digest == digest_of(tmp_path / "x")


def test_equal_state_gives_equal_bytes_whatever_the_order(tmp_path):
    tensors = {name: torch.full((2,), float(i)) for i, name in enumerate("cab")}
    write_safetensors(tmp_path / "one", tensors)
    write_safetensors(tmp_path / "two", dict(reversed(tensors.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_without_tensors_is_read_back(tmp_path):
    write_safetensors(tmp_path / "x", {})
    assert load_file(tmp_path / "x") == {}


def test_a_snapshot_shares_no_memory_with_training():
    live = state()
    copied = snapshot(live)
    live["net"]["weight"].zero_()
    assert (copied["net"]["weight"] == 1).all()


# -- complete or absent ---------------------------------------------------------------------


def test_a_checkpoint_is_read_back_whole(tmp_path):
    path = put(tmp_path, 7)
    assert path.name == "step-00000007"
    assert examine(path) is None
    found = read(path)
    for file, tensors in state().items():
        assert set(found[file]) == set(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(found[file][name], tensor)
    about = read_about(path)
    assert (about["step"], about["samples"], about["run"]) == (7, 70, "me")
    assert os.listdir(tmp_path) == ["step-00000007"]


@pytest.mark.parametrize("fatal", range(1, 7))
def test_a_write_that_fails_anywhere_leaves_nothing_behind(tmp_path, monkeypatch, fatal):
    put(tmp_path, 1)
    calls = 0

    def failing(handle):
        nonlocal calls
        calls += 1
        if calls == fatal:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    sync = os.fsync
    monkeypatch.setattr(os, "fsync", failing)
    try:
        put(tmp_path, 2)
        failed = False
    except OSError:
        failed = True
    monkeypatch.undo()
    if steps_in(tmp_path) == [1]:
        assert failed
        assert os.listdir(tmp_path) == ["step-00000001"]
    else:  # only what comes after the rename can fail now
        assert examine(path_of(tmp_path, 2)) is None
    assert newest_intact(tmp_path, pytest.fail) is not None


def test_a_tensor_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    put(tmp_path, 1)
    with pytest.raises(Exception):  # noqa: B017
        write(tmp_path, 2, {"net": {"odd": torch.ones(2, dtype=torch.complex64)}}, {})
    assert os.listdir(tmp_path) == ["step-00000001"]


def test_an_unwritable_tensor_is_named_in_the_error(tmp_path):
    with pytest.raises(Exception, match="odd"):
        write_safetensors(tmp_path / "x", {"odd": torch.ones(2, dtype=torch.complex64)})


@given(st.integers(0, 99_999_999))
@settings(max_examples=50)
def test_a_temporary_name_is_never_that_of_a_checkpoint(step):
    partial = partial_name(path_of(Path("checkpoints"), step))
    assert not checkpoint.NAME.fullmatch(partial.name)
    assert checkpoint.NAME.fullmatch(f"step-{step:08d}")


def test_a_partial_checkpoint_is_not_listed(tmp_path, monkeypatch):
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append(steps_in(tmp_path)), sync(handle)))
    put(tmp_path, 3)
    assert seen[:-1] == [[]] * (len(seen) - 1)
    assert seen[-1] == [3]  # the folder is synced once more after the rename


def test_a_repeated_step_replaces_the_old_checkpoint(tmp_path):
    put(tmp_path, 3, value=1.0)
    put(tmp_path, 3, value=2.0)
    assert (read(path_of(tmp_path, 3))["net"]["weight"] == 2).all()


def test_a_kill_while_a_step_is_replaced_leaves_it_complete_or_absent(tmp_path, monkeypatch):
    put(tmp_path, 3)
    remove = shutil.rmtree

    def killed(path, *args, **kwargs):
        if not os.path.exists(path):
            return
        os.remove(os.path.join(path, sorted(os.listdir(path))[0]))
        monkeypatch.setattr(shutil, "rmtree", remove)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        put(tmp_path, 3)
    for step in steps_in(tmp_path):
        assert examine(path_of(tmp_path, step)) is None


def test_only_partial_files_of_a_killed_writer_are_removed(tmp_path):
    put(tmp_path, 1)
    partial = partial_name(path_of(tmp_path, 2))
    partial.mkdir()
    (partial / "half").write_text("x")
    (tmp_path / "notes.txt").write_text("mine")
    remove_partial(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step-00000001"]


# -- damage ---------------------------------------------------------------------------------

FILES = ["net.safetensors", "net.optim.safetensors", "state.json"]
anyhow = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.data())
@anyhow
def test_a_flipped_bit_anywhere_is_noticed(tmp_path_factory, data):
    path = put(tmp_path_factory.mktemp("run"), 12345)
    file = path / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, 8 * len(content) - 1))
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)
    assert examine(path) is not None


@pytest.mark.parametrize(
    ("old", "new"), [('"samples": 123450', '"samples": 123451'), ('"step": 12345', '"step": 12344')]
)
def test_a_changed_position_is_noticed(tmp_path, old, new):
    path = put(tmp_path, 12345)
    text = (path / "state.json").read_text()
    assert old in text
    (path / "state.json").write_text(text.replace(old, new))
    assert examine(path) is not None


@given(st.data())
@anyhow
def test_a_truncated_file_is_noticed(tmp_path_factory, data):
    path = put(tmp_path_factory.mktemp("run"), 1)
    file = path / data.draw(st.sampled_from(FILES))
    # The last byte of state.json is a line feed that means nothing.
    size = data.draw(st.integers(0, file.stat().st_size - 2))
    os.truncate(file, size)
    assert examine(path) is not None


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(tmp_path, name):
    path = put(tmp_path, 1)
    (path / name).unlink()
    assert name in (examine(path) or "")


BROKEN = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"3",
    "no files": b"{}",
    "files as a list": b'{"files": []}',
    "files as a number": b'{"files": 3}',
    "facts as a number": b'{"files": {"net.safetensors": 3}}',
    "no bytes": b'{"files": {"net.safetensors": {}}}',
    "binary": bytes(range(256)),
    "nested too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_state_json_is_noticed_skipped_and_never_removed(tmp_path, content):
    put(tmp_path, 1)
    path = put(tmp_path, 2)
    (path / "state.json").write_bytes(content)
    assert examine(path)
    assert newest_intact(tmp_path, lambda said: None) == 1
    retain(tmp_path, last=1, every=0, best=None, run_id="me")
    put(tmp_path, 3)
    retain(tmp_path, last=1, every=0, best=None, run_id="me")
    assert path.exists()


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_reading_a_broken_checkpoint_is_a_run_error(tmp_path, content):
    path = put(tmp_path, 2)
    (path / "state.json").write_bytes(content)
    try:
        found = read(path)
    except RunError as error:
        assert "step-00000002" in str(error)  # noqa: PT017
    else:
        assert set(found) <= {"net"}  # a page that still names its files


def test_the_newest_intact_checkpoint_is_used_and_damaged_ones_are_reported(tmp_path):
    for step in (1, 2, 3):
        put(tmp_path, step)
    os.truncate(path_of(tmp_path, 3) / "net.safetensors", 5)
    (path_of(tmp_path, 2) / "net.safetensors").unlink()
    said = []
    assert newest_intact(tmp_path, said.append) == 1
    assert [s.split()[1] for s in said] == ["step-00000003", "step-00000002"]
    assert "net.safetensors" in said[0]
    assert "5 bytes" in said[0]


def test_without_an_intact_checkpoint_the_run_stops_instead_of_restarting(tmp_path):
    put(tmp_path, 1)
    os.truncate(path_of(tmp_path, 1) / "net.safetensors", 5)
    with pytest.raises(RunError, match=r"none of the 1 checkpoints.*backup"):
        newest_intact(tmp_path, lambda said: None)


def test_without_any_the_run_starts(tmp_path):
    assert newest_intact(tmp_path, pytest.fail) is None
    assert newest_intact(tmp_path / "absent", pytest.fail) is None


# -- retention ------------------------------------------------------------------------------


def test_retention_keeps_the_last_the_multiples_and_the_best(tmp_path):
    for step in range(10, 100, 10):
        put(tmp_path, step)
    retain(tmp_path, last=2, every=30, best=20, run_id="me")
    assert steps_in(tmp_path) == [20, 30, 60, 80, 90]
    assert sorted(os.listdir(tmp_path)) == [f"step-{s:08d}" for s in (20, 30, 60, 80, 90)]


def test_what_another_run_or_a_person_put_there_is_never_removed(tmp_path):
    for step, run in ((1, "other"), (2, "me"), (3, "me")):
        put(tmp_path, step, run)
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "step-00000000" / "precious.txt").write_text("x")
    (tmp_path / "step-best").mkdir()
    (tmp_path / "notes").write_text("x")
    retain(tmp_path, last=1, every=0, best=None, run_id="me")
    assert sorted(os.listdir(tmp_path)) == [
        "notes",
        "step-00000000",
        "step-00000001",
        "step-00000003",
        "step-best",
    ]


def test_damaged_later_checkpoints_do_not_displace_new_ones(tmp_path):
    """Damaged checkpoints of later steps must not push the only intact one out."""
    for step in (10, 20, 30):
        put(tmp_path, step)
    for step in (20, 30):
        os.truncate(path_of(tmp_path, step) / "net.safetensors", 5)
    assert newest_intact(tmp_path, lambda said: None) == 10
    put(tmp_path, 15)
    retain(tmp_path, last=2, every=0, best=None, run_id="me", newest=15)
    assert newest_intact(tmp_path, lambda said: None) == 15


# -- the background -------------------------------------------------------------------------


def test_the_writer_writes_in_order_and_waits(tmp_path):
    writer = Writer()
    for step in range(1, 6):
        writer.submit(lambda step=step: put(tmp_path, step))
    writer.wait()
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]
    writer.close()


@pytest.mark.parametrize("how", ["wait", "check", "submit"])
def test_a_background_error_is_raised_and_earlier_checkpoints_stay_intact(
    tmp_path, monkeypatch, how
):
    def full(handle):
        raise OSError(errno.ENOSPC, "ignored")

    writer = Writer()
    writer.submit(lambda: put(tmp_path, 1))
    writer.wait()
    monkeypatch.setattr(os, "fsync", full)
    writer.submit(lambda: put(tmp_path, 2))
    writer._jobs.join()
    monkeypatch.undo()
    call = {"wait": writer.wait, "check": writer.check, "submit": lambda: writer.submit(print)}
    with pytest.raises(RunError, match=r"No space left on device.*earlier checkpoints are intact"):
        call[how]()
    assert newest_intact(tmp_path, pytest.fail) == 1
    assert steps_in(tmp_path) == [1]
    writer.close()


def test_closing_a_writer_finishes_the_current_job(tmp_path):
    writer = Writer()
    writer.submit(lambda: put(tmp_path, 1))
    writer.close()
    assert steps_in(tmp_path) == [1]
    assert not writer._thread.is_alive()


# -- malice ---------------------------------------------------------------------------------


class Bomb:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("content", ["pickle", "torch"])
def test_a_pickle_that_calls_itself_safetensors_runs_nothing(tmp_path, content):
    path = put(tmp_path, 1)
    fuse = tmp_path / "exploded"
    file = path / "net.safetensors"
    if content == "pickle":
        file.write_bytes(pickle.dumps(Bomb(fuse)))
    else:
        torch.save(Bomb(fuse), file)
    about = read_about(path)
    about["files"][file.name] = {"bytes": file.stat().st_size, "sha256": digest_of(file)}
    (path / "state.json").write_text(json.dumps(about))
    examine(path)
    with pytest.raises(RunError, match="step-00000001"):
        read(path)
    assert not fuse.exists()


@pytest.mark.parametrize("name", ["../secret.safetensors", "../../secret.safetensors", "..", ""])
def test_names_in_the_page_do_not_lead_out(tmp_path, name):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    path = put(folder, 1)
    for place in (folder, tmp_path / "run"):
        write_safetensors(place / "secret.safetensors", {"x": torch.ones(1)})
    secret = folder / "secret.safetensors"
    facts = {"bytes": secret.stat().st_size, "sha256": digest_of(secret)}
    (path / "state.json").write_text(json.dumps({"step": 1, "files": {name: facts}}))
    assert examine(path)
    with pytest.raises(RunError):
        read(path)


def test_an_absolute_name_does_not_lead_out(tmp_path):
    path = put(tmp_path, 1)
    write_safetensors(tmp_path / "secret.safetensors", {"x": torch.ones(1)})
    name = str(tmp_path / "secret.safetensors")
    facts = {"bytes": 1, "sha256": digest_of(tmp_path / "secret.safetensors")}
    (path / "state.json").write_text(json.dumps({"step": 1, "files": {name: facts}}))
    assert examine(path)
    with pytest.raises(RunError):
        read(path)

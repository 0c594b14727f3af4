"""Runs in object storage: the lease, the mirror, the order of uploads. The bucket is a folder of
this machine, read and written through fsspec; S3 itself is in test_s3.py."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.engine.errors import RunError
from quintet.engine.runs import checkpoint
from quintet.engine.runs.remote import uploader as uploading
from quintet.engine.runs.remote.bucket import Bucket
from quintet.engine.runs.remote.lease import Lease, Lost
from quintet.engine.runs.remote.mirror import Mirror, complete
from quintet.engine.runs.remote.uploader import Uploader
from quintet.files import write_json
from quintet.suggest import command


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    move_to("one", tmp_path, monkeypatch)
    monkeypatch.setattr(uploading, "PAUSE", 0.0)
    return f"file://{tmp_path}/bucket/run"


def move_to(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / machine))


@pytest.fixture
def writing(url: str) -> Iterator[Callable[..., Uploader]]:
    """Uploaders of this test; what they left running is stopped."""
    opened: list[Uploader] = []

    def write(**options: Any) -> Uploader:
        settings = {"retention": (2, 0), "rollback": False, **options}
        opened.append(Uploader(Mirror.at(url), **settings))
        return opened[-1]

    yield write
    for each in opened:
        each.close()


def save(mirror: Mirror, step: int, value: float = 0.0) -> None:
    mirror.checkpoints.mkdir(parents=True, exist_ok=True)
    write_json(mirror.path / "config.json", {"id": "me"})
    files = {"net": {"weight": torch.full((4,), step + value)}}
    checkpoint.write(mirror.checkpoints, step, files, {"run": "me", "step": step})


def stored(url: str) -> list[int]:
    return complete(Bucket(url).list())


# -- the lease ------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_holds_the_run_and_until_when(url: str) -> None:
    bucket = Bucket(url)
    first = Lease(bucket, "a", ())
    with pytest.raises(RunError, match=r"trained by process \d+ on .*, which holds it until 20"):
        Lease(Bucket(url), "b", ())
    first.close(wrote=True)
    Lease(Bucket(url), "b", ()).close(wrote=True)


def test_a_lease_that_is_not_renewed_ends_and_its_owner_finds_out(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTET_LEASE_SECONDS", "0.3")
    first = Lease(Bucket(url), "a", ())
    time.sleep(0.6)
    with pytest.raises(RunError):
        Lease(Bucket(url), "b", ())  # it was renewed
    first._stop.set()
    first._thread.join()
    time.sleep(0.4)
    monkeypatch.setenv("QUINTET_LEASE_SECONDS", "60")
    second = Lease(Bucket(url), "b", ())
    with pytest.raises(Lost, match="has been taken by process"):
        first.check()
    second.close(wrote=True)


def test_of_many_that_start_at_once_one_gets_the_run(url: str) -> None:
    outcomes: list[Any] = []

    def start(name: str) -> None:
        try:
            outcomes.append(Lease(Bucket(url), name, ()))
        except RunError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=start, args=(f"owner-{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    assert len(held) == 1, outcomes
    held[0].close(wrote=True)


def test_a_run_that_is_lost_stops_and_overwrites_nothing(
    url: str, writing: Callable[..., Uploader]
) -> None:
    mine = writing()
    save(mine.mirror, 2)
    mine.saved(2, prunes=True)
    assert mine.finish() == ""
    other = {"owner": "other", "host": "elsewhere", "process": 7, "until": time.time() + 60}
    Bucket(url).write("lease/00000002.json", json.dumps(other).encode())
    before = {name: Bucket(url).read(name) for name in Bucket(url).list()}
    save(mine.mirror, 4)
    mine.saved(4, prunes=True)
    assert "taken by process 7 on elsewhere" in mine.finish()
    with pytest.raises(Lost):
        mine.reported()
    mine.close()
    assert {name: Bucket(url).read(name) for name in Bucket(url).list()} == before


# -- uploads --------------------------------------------------------------------------------


def test_the_bucket_is_pruned_as_the_disk(url: str, writing: Callable[..., Uploader]) -> None:
    mine = writing(retention=(2, 30))
    for step in (10, 20, 30, 40, 50, 60):
        save(mine.mirror, step)
        if step == 20:
            write_json(mine.mirror.path / "best.json", {"step": 20, "value": 1.0})
        mine.saved(step, prunes=True)
        assert mine.finish() == ""
        checkpoint.retain(mine.mirror.checkpoints, 2, 30, 20, "me", newest=step)
    assert stored(url) == [20, 30, 50, 60] == checkpoint.steps_in(mine.mirror.checkpoints)


def test_a_checkpoint_that_was_superseded_while_another_was_sent_is_passed_over(
    url: str, writing: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing(retention=(1, 0))
    sends, goes_on = threading.Event(), threading.Event()
    put, sent = mine.bucket.put, list[str]()

    def slow(path: Path, name: str) -> None:
        sent.append(name)
        sends.set()
        goes_on.wait(10)
        put(path, name)

    monkeypatch.setattr(mine.bucket, "put", slow)
    for step in (1, 2, 3, 4):
        save(mine.mirror, step)
        mine.saved(step, prunes=True)
        if step == 1:
            assert sends.wait(10)
        checkpoint.retain(mine.mirror.checkpoints, 1, 0, None, "me", step, mine.uploading)
    assert checkpoint.steps_in(mine.mirror.checkpoints) == [1, 4]  # 1 is being sent
    goes_on.set()
    assert mine.finish() == ""
    assert stored(url) == [4]
    assert not [name for name in sent if "step-00000002" in name or "step-00000003" in name]


def test_a_checkpoint_counts_only_with_its_state_and_after_the_reports_up_to_it(
    url: str, writing: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing()
    order: list[str] = []
    write = mine.bucket.write
    monkeypatch.setattr(
        mine.bucket, "write", lambda name, content: (order.append(name), write(name, content))
    )
    save(mine.mirror, 2)
    (mine.mirror.path / "metrics.jsonl").write_text('{"step": 2}\n')
    write_json(mine.mirror.path / "best.json", {"step": 2, "value": 1.0})
    mine.saved(2, prunes=True)
    assert mine.finish() == ""
    names = [name for name in order if not name.startswith("lease")]
    step = "checkpoints/step-00000002"
    assert names[0] == f"{step}/net.safetensors"
    assert names.index("metrics.jsonl") < names.index(f"{step}/state.json")
    assert names[-1] == "best.json"


def test_what_a_rollback_discards_leaves_the_bucket(
    url: str, writing: Callable[..., Uploader]
) -> None:
    mine = writing()
    for step in (2, 4):
        save(mine.mirror, step)
        mine.saved(step, prunes=True)
        assert mine.finish() == ""
    shutil.rmtree(checkpoint.path_of(mine.mirror.checkpoints, 4))
    mine.forget_after(2)
    mine.reported()
    assert mine.finish() == ""
    assert stored(url) == [2]
    save(mine.mirror, 4, value=0.5)  # repeated, with another data order
    mine.saved(4, prunes=True)
    assert mine.finish() == ""
    state = Bucket(url).read("checkpoints/step-00000004/state.json")
    assert state == (mine.mirror.checkpoints / "step-00000004/state.json").read_bytes()


def test_a_step_that_is_discarded_and_repeated_during_its_upload_is_sent_anew(
    url: str, writing: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing()
    save(mine.mirror, 2)
    mine.saved(2, prunes=True)
    assert mine.finish() == ""
    sends, goes_on = threading.Event(), threading.Event()
    put = mine.bucket.put

    def slow(path: Path, name: str) -> None:
        put(path, name)
        sends.set()
        goes_on.wait(10)

    monkeypatch.setattr(mine.bucket, "put", slow)
    save(mine.mirror, 4)
    mine.saved(4, prunes=True)
    assert sends.wait(10)
    shutil.rmtree(checkpoint.path_of(mine.mirror.checkpoints, 4))
    mine.forget_after(2)
    save(mine.mirror, 4, value=0.5)
    mine.saved(4, prunes=True)
    goes_on.set()
    assert mine.finish() == ""
    assert stored(url) == [2, 4]
    for name in ("state.json", "net.safetensors"):
        there = Bucket(url).read(f"checkpoints/step-00000004/{name}")
        assert there == (mine.mirror.checkpoints / "step-00000004" / name).read_bytes()


def test_a_store_that_is_away_for_a_while_costs_nothing(
    url: str, writing: Callable[..., Uploader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing()
    save(mine.mirror, 2)
    away = True
    put = mine.bucket.put

    def unsteady(path: Path, name: str) -> None:
        if away:
            raise ConnectionError("no route")
        put(path, name)

    monkeypatch.setattr(mine.bucket, "put", unsteady)
    monkeypatch.setenv("QUINTET_UPLOAD_SECONDS", "1")
    mine.saved(2, prunes=True)
    missing = mine.finish()
    assert "checkpoint 2 could not be uploaded (ConnectionError: no route)" in missing
    assert "holds no checkpoint" in missing
    assert str(mine.mirror.path) in missing
    assert any("cannot be written" in note for note in mine.reported())
    away = False
    assert mine.finish() == ""
    assert stored(url) == [2]
    assert any("is written again" in note for note in mine.reported())


# -- mirrors --------------------------------------------------------------------------------


def test_what_was_not_uploaded_is_kept_by_the_last_writer_and_dropped_by_others(
    url: str, writing: Callable[..., Uploader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing()
    save(mine.mirror, 2)
    mine.saved(2, prunes=True)
    assert mine.finish() == ""
    mine.close()
    save(mine.mirror, 4)  # as a process leaves it that is killed before the upload
    again = writing()
    assert checkpoint.steps_in(again.mirror.checkpoints) == [2, 4]
    again.reported()
    assert again.finish() == ""
    assert stored(url) == [2, 4]
    again.close()
    save(mine.mirror, 6)
    move_to("two", tmp_path, monkeypatch)
    other = writing()
    assert checkpoint.steps_in(other.mirror.checkpoints) == [4]  # the newest
    save(other.mirror, 5)
    other.saved(5, prunes=True)
    assert other.finish() == ""
    other.close()
    move_to("one", tmp_path, monkeypatch)
    back = writing()
    assert 6 not in checkpoint.steps_in(back.mirror.checkpoints)
    assert max(checkpoint.steps_in(back.mirror.checkpoints)) == 5


def test_a_start_that_is_refused_does_not_make_it_the_last_writer(
    url: str, writing: Callable[..., Uploader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing()
    save(mine.mirror, 2)
    mine.saved(2, prunes=True)
    mine.close()
    save(mine.mirror, 4)
    move_to("two", tmp_path, monkeypatch)
    writing().close()
    move_to("one", tmp_path, monkeypatch)
    assert checkpoint.steps_in(writing().mirror.checkpoints) == [2, 4]


def test_an_unfinished_or_damaged_checkpoint_is_passed_over(
    url: str, writing: Callable[..., Uploader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = writing()
    for step in (2, 4):
        save(mine.mirror, step)
        mine.saved(step, prunes=True)
        assert mine.finish() == ""
    mine.close()
    bucket = Bucket(url)
    content = bucket.read("checkpoints/step-00000004/net.safetensors")
    bucket.write("checkpoints/step-00000004/net.safetensors", content[:-1] + b"\x01")
    bucket.write("checkpoints/step-00000006/net.safetensors", content)
    move_to("two", tmp_path, monkeypatch)
    notes: list[str] = []
    other = Mirror.at(url)
    assert other.pull("newest", notes.append)
    assert checkpoint.steps_in(other.checkpoints) == [2]
    assert "step-00000004" in notes[0]
    assert "does not match its digest" in notes[0]
    mine = writing()  # a writer removes what a killed upload left
    mine.reported()
    assert mine.finish() == ""
    assert not [name for name in bucket.list() if "step-00000006" in name]


def test_a_mirror_whose_run_was_removed_is_not_uploaded_again(
    url: str, writing: Callable[..., Uploader], tmp_path: Path
) -> None:
    mine = writing()
    save(mine.mirror, 2)
    mine.saved(2, prunes=True)
    mine.close()
    shutil.rmtree(tmp_path / "bucket")
    for _ in range(2):
        with pytest.raises(RunError, match=r"has been removed, but its mirror .* is there"):
            writing()


def test_names_that_leave_the_folder_are_not_copied(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(url)
    bucket.write("config.json", b"{}")
    find = bucket.fs.find(bucket.root, detail=True)
    (info,) = find.values()
    forged = {f"{bucket.root}/../outside": info, f"{bucket.root}/.hidden": info, **find}
    monkeypatch.setattr(bucket.fs, "find", lambda *_, **__: forged)
    assert [*bucket.list()] == ["config.json"]


def test_suggested_commands_name_the_address(url: str) -> None:
    path = Mirror.at(url).path
    assert command("resume", path) == f"quintet resume {url}"
    assert command("export", f"{path}@12") == f"quintet export {url}@12"


# -- the command line -----------------------------------------------------------------------


def test_commands_refuse_addresses_that_hold_no_run(url: str, cli: Any) -> None:
    for verb in ("resume", "sample", "export", "report", "replay"):
        assert f"there is no run at {url}" in cli(verb, url).sentence
    said = cli("train", "image/vqgan_tiny", "--run", "https://somewhere/run").sentence
    assert "cannot be written" in said
    said = cli("resume", "nowhere://run").sentence
    assert "nowhere://run" in said


def test_the_error_names_the_missing_package(cli: Any) -> None:
    said = cli("resume", "gs://bucket/run")
    assert said.status == 2
    assert "gcsfs" in said.err

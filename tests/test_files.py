"""Files and folders appear complete or not at all."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from quintet.files import (
    PARTIAL,
    atomic_folder,
    atomic_write,
    cache_root,
    digest_of,
    partial_name,
    private_cache,
    remove_folder,
    remove_partial,
    write_json,
)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fsync", fail)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_written_file_replaces_the_old_one(tmp_path):
    for content in (b"old", b"new"):
        atomic_write(tmp_path / "a.bin", content)
        assert (tmp_path / "a.bin").read_bytes() == content
    assert names(tmp_path) == ["a.bin"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, request):
    atomic_write(tmp_path / "a.bin", b"old")
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="disk full"):
        atomic_write(tmp_path / "a.bin", b"new")
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_json_is_replaced_whole_or_not_at_all(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


def test_a_link_is_replaced_and_not_followed(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "a.json").symlink_to(outside)
    write_json(tmp_path / "a.json", {})
    assert not (tmp_path / "a.json").is_symlink()
    monkeypatch.setattr("quintet.files.uuid4", lambda: type("Fixed", (), {"hex": "0" * 32}))
    partial_name(tmp_path / "b").symlink_to(outside)
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "b", b"theirs")
    assert outside.read_text() == "mine"


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with atomic_folder(tmp_path / "out") as partial:
        (partial / "a").write_text("a")
        assert not (tmp_path / "out").exists()
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["a"]


def test_a_folder_that_fails_leaves_nothing_behind(tmp_path):
    def killed():
        with atomic_folder(tmp_path / "out") as partial:
            (partial / "half").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert names(tmp_path) == []


def test_a_folder_with_content_is_replaced_only_on_request(tmp_path):
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    with pytest.raises(OSError), atomic_folder(tmp_path / "theirs"):
        pass
    with atomic_folder(tmp_path / "ours", replace=True) as partial:
        (partial / "new").write_text("new")
    assert names(tmp_path) == ["ours", "theirs"]
    assert names(tmp_path / "theirs") == ["old"]
    assert names(tmp_path / "ours") == ["new"]


def test_a_kill_while_a_folder_is_removed_leaves_it_whole_or_absent(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
    remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    monkeypatch.undo()
    assert list(tmp_path.glob(PARTIAL))
    remove_partial(tmp_path)
    assert names(tmp_path) == []


def test_only_partial_entries_are_cleared_away(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.json", ".hidden", "writing"):
        (folder / name).write_text("mine")
    partial_name(folder / "a.json").write_text("half")
    partial_name(folder / "b").mkdir()
    partial_name(folder / "c").symlink_to(outside)
    remove_partial(folder)
    assert names(folder) == [".hidden", "a.json", "writing"]
    assert names(outside) == ["mine"]


def test_the_digest_is_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert digest_of(tmp_path / "a").startswith("ba7816bf8f01cfea")


def test_the_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "elsewhere"))
    assert cache_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("QUINTET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
    assert cache_root() == tmp_path / "users/quintet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home/.cache/quintet"


def test_code_is_cached_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "cache"))
    folder = private_cache("compiled/code")
    assert folder == tmp_path / "cache/compiled/code"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_cache("compiled/code") == folder
    folder.chmod(0o770)
    assert private_cache("compiled/code") is None
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "file"))
    assert private_cache("compiled/code") is None

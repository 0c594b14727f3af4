"""Atomic writes of files and folders, file digests, marks of outputs, and the cache folder.

Everything is written under a hidden partial name in its own folder, synced and renamed. A process
killed at any time leaves a complete entry, or none and a `.NAME.XXXXXXXX.writing` for
`remove_partial`. Partial names are random and opened exclusively: links are never followed, and
two writers of one path do not mix.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

T = TypeVar("T")
PARTIAL = ".*.writing"
"""Glob pattern of partial names."""


def partial_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.writing")


@contextmanager
def atomic_path(path: Path, sync: bool = True) -> Generator[Path]:
    """Yield a partial name for a file that becomes `path` on success and is removed on failure."""
    partial = partial_name(path)
    if _marked is not None and sync:
        mark_output(path)
    try:
        yield partial
        rename(partial, path, sync)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def atomic_write(path: Path | str, content: bytes, sync: bool = True) -> None:
    """Write a file; `sync=False` for content that is verified on reading or cheap to rebuild."""
    with atomic_path(Path(path), sync) as partial, open(partial, "xb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


OUTPUTS = ".quintet-outputs"
"""Names of the files of a folder that commands wrote there, one JSON string a line."""
_marked: dict[Path, set[str]] | None = None


@contextmanager
def marking_outputs() -> Generator[None]:
    """Context in which `atomic_write` marks what it writes, before it is there: listings of data
    skip it. A folder may hold files of the user as well, so files are marked, not folders."""
    global _marked
    outer, _marked = _marked, {}
    try:
        yield
    finally:
        _marked = outer


def mark_output(path: Path) -> None:
    folder = path.parent
    names = outputs_in(folder) if _marked is None else _marked.get(folder)
    names = outputs_in(folder) if names is None else names
    if path.name not in names:
        with open(folder / OUTPUTS, "a", encoding="ascii") as file:
            file.write(f"{json.dumps(path.name)}\n")
        names.add(path.name)
    if _marked is not None:
        _marked[folder] = names


def outputs_in(folder: Path | str) -> set[str]:
    """Names that are marked in a folder."""
    names: set[str] = set()
    with suppress(OSError), open(os.path.join(folder, OUTPUTS), "rb") as file:
        for line in file:
            with suppress(ValueError, TypeError, RecursionError):  # cut by a kill
                names.add(json.loads(line))
    return names


@contextmanager
def atomic_folder(path: Path, replace: bool = False) -> Generator[Path]:
    """Yield a partial folder that becomes `path` on success and is removed on failure.

    The parent must exist. Anything but an empty folder at `path` is an error unless `replace`.
    """
    partial = partial_name(path)
    partial.mkdir()
    try:
        yield partial
        sync_folder(partial)
        old = partial_name(path)
        if replace and path.exists():
            os.rename(path, old)  # never half a folder under its final name
        rename(partial, path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder without ever leaving half of it under its name."""
    partial = partial_name(path)
    os.rename(path, partial)
    shutil.rmtree(partial, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove what killed writers left in a folder. The caller holds the folder's lock."""
    for entry in folder.glob(PARTIAL):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def rename(partial: Path, path: Path, sync: bool = True) -> None:
    os.replace(partial, path)
    if sync:  # the name itself is only on disk once its folder is
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    atomic_write(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_reused: dict[Hashable, Any] | None = None


@contextmanager
def reading_once() -> Generator[None]:
    """Context in which `once` caches its results, so that two splits share one listing."""
    global _reused
    outer = _reused
    _reused = {} if outer is None else outer
    try:
        yield
    finally:
        _reused = outer


def once(key: Hashable, read: Callable[[], T]) -> T:
    """The result of `read`, cached by key inside `reading_once`."""
    if _reused is None:
        return read()
    if key not in _reused:
        _reused[key] = read()
    return _reused[key]


def private_cache(name: str) -> Path | None:
    """A cache folder for compiled code, writable by its owner alone; None if there is none."""
    folder = cache_root() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError:
        return None
    # Anyone else who can write here could run code as this user.
    owned = about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if owned and os.access(folder, os.W_OK) else None


def cache_root() -> Path:
    """QUINTET_CACHE, or `quintet` in the user's cache folder. May be deleted at any time."""
    if "QUINTET_CACHE" in os.environ:
        return Path(os.environ["QUINTET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quintet"

"""Mirror: the local copy of a run in object storage.

    CACHE/runs/DIGEST/NAME          the run folder
    CACHE/runs/DIGEST/mirror.json   its address, its owners, and the versions of its files
    CACHE/runs/DIGEST/writer.lock   held by the process that trains in it
    CACHE/runs/DIGEST/copy.lock     held while files are copied into it

In the bucket a checkpoint is complete once it has its state.json, which is written last. The
bucket has the last word, except in the mirror of the process that wrote to it last: what that one
had not uploaded is still there.
"""

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from quintet import suggest
from quintet.engine.errors import RunError
from quintet.engine.runs import lock
from quintet.engine.runs.checkpoint import examine, path_of, read_about, steps_in
from quintet.engine.runs.remote.bucket import Bucket, Stored, explain
from quintet.engine.runs.remote.lease import FOLDER, Lease
from quintet.files import atomic_folder, cache_root, remove_folder, write_json
from quintet.urls import is_url

CHECKPOINTS = "checkpoints"
OWN = {"requests.json"}
"""Files that concern the processes of one machine."""
NO_FILES = (f"{CHECKPOINTS}/", f"{FOLDER}/")
FOLLOWING = 10.0
"""Seconds between two copies for `watch`."""
Wanted = Literal["newest", "best", "all", "none"] | int


class Mirror:
    def __init__(self, url: str, home: Path):
        self.url, self.home = url, home
        self.path = home / (url.rpartition("/")[2] or "run")
        self.checkpoints = self.path / CHECKPOINTS

    @classmethod
    def at(cls, url: str) -> "Mirror":
        """The mirror of an address. Commands that messages suggest name the address."""
        url = url.rstrip("/")
        digest = hashlib.sha256(url.encode()).hexdigest()[:12]
        mirror = cls(url, _root() / digest)
        try:
            mirror.home.mkdir(parents=True, exist_ok=True)
            if not mirror.record():
                mirror.note(url=url)
        except OSError as error:
            raise RunError(f"the mirror {mirror.home} cannot be written: {error}") from None
        suggest.ALIASES[str(mirror.path)] = url
        return mirror

    @classmethod
    def of(cls, path: Path) -> "Mirror | None":
        """The mirror whose run folder this is; None for any other folder."""
        path = path.absolute()
        if path.parent.parent != _root().absolute():
            return None
        url = cls("", path.parent).record().get("url")
        mirror = cls.at(url) if url else None
        return mirror if mirror and mirror.path.absolute() == path else None

    def record(self) -> dict[str, Any]:
        try:
            value = json.loads((self.home / "mirror.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def note(self, **changes: Any) -> None:
        write_json(self.home / "mirror.json", {**self.record(), **changes})

    def is_held(self) -> bool:
        """Whether a process of this machine trains in it."""
        handle = lock.acquire(self.home / "writer.lock")
        if handle is not None:
            lock.release(handle)
        return handle is None

    def pull(self, wanted: Wanted, say: Callable[[str], None]) -> bool:
        """Copy what is missing; whether there is a run. While a process of this machine trains in
        the mirror, that is newer than the bucket."""
        with self._copying():
            if self.is_held():
                return True
            bucket = Bucket(self.url)
            for _ in range(3):  # a run under way removes checkpoints while they are copied
                with suppress(FileNotFoundError):
                    return _copy(self, bucket, bucket.list(), wanted, False, say)
        raise RunError(f"{self.url} changes faster than it can be copied; try again")

    def claim(self, checkpoints: int, say: Callable[[str], None]) -> tuple[Bucket, Lease, int]:
        """Take the run for this process, and copy its newest checkpoints; also returns the handle
        of the mirror's lock."""
        handle = lock.acquire(self.home / "writer.lock")
        if handle is None:
            raise RunError(f"{self.url} is being trained by another process of this machine")
        lease: Lease | None = None
        try:
            with self._copying():
                bucket, record, owner = Bucket(self.url), self.record(), uuid.uuid4().hex
                gone = {str(record.get("owner")), str(record.get("next_owner"))}
                if "owner" in record and not bucket.list(FOLDER):
                    raise RunError(
                        f"{self.url} has been removed, but its mirror {self.path} is there; "
                        f"remove {self.home}, or choose another address"
                    )
                self.note(next_owner=owner)  # a kill may come as soon as the lease is written
                lease = Lease(bucket, owner, gone)
                ahead = lease.owner_before in gone
                _copy(self, bucket, bucket.list(), "newest", ahead, say, checkpoints)
                self.note(owner=owner)
        except BaseException as error:
            if lease is not None:
                with suppress(Exception):
                    lease.close(wrote=False)
            lock.release(handle)
            if isinstance(error, (RunError, ImportError)) or not isinstance(error, Exception):
                raise
            raise RunError(f"{self.url} cannot be used: {explain(error)}") from error
        return bucket, lease, handle

    @contextmanager
    def _copying(self) -> Generator[None]:
        handle = lock.acquire(self.home / "copy.lock", wait=True)
        try:
            yield
        finally:
            if handle is not None:
                lock.release(handle)


def _root() -> Path:
    return cache_root() / "runs"


def pull(url: str, wanted: Wanted, say: Callable[[str], None]) -> Mirror | None:
    """The mirror of a run, brought up to date; None if there is no run at the address."""
    mirror = Mirror.at(url)
    try:
        return mirror if mirror.pull(wanted, say) else None
    except (RunError, ImportError):
        raise
    except Exception as error:
        raise RunError(f"{url} cannot be read: {explain(error)}") from error


def folder_of(run: str | Path) -> Path:
    """The folder of a run, or of the mirror of an address."""
    return Mirror.at(str(run)).path if is_url(run) else Path(run)


def follow(mirror: Mirror) -> None:
    """Keep reports and exhibits up to date until the process ends."""

    def work() -> None:
        while not threading.Event().wait(FOLLOWING):
            with suppress(Exception):  # the page shows how old its news are
                mirror.pull("none", lambda _: None)

    threading.Thread(target=work, name="follow", daemon=True).start()


# -- copying ------------------------------------------------------------------------------------


def _copy(
    mirror: Mirror,
    bucket: Bucket,
    objects: Mapping[str, Stored],
    wanted: Wanted,
    ahead: bool,
    say: Callable[[str], None],
    count: int = 1,
) -> bool:
    """`ahead`: this mirror wrote to the bucket last, so nothing in it is older."""
    if not ahead:
        _copy_files(mirror, bucket, objects)
        for step in steps_in(mirror.checkpoints):
            if not _is_current(mirror, bucket, objects, step):
                remove_folder(path_of(mirror.checkpoints, step))
    if not (mirror.path / "config.json").is_file():
        return False
    mirror.checkpoints.mkdir(exist_ok=True)
    remote, local = complete(objects), steps_in(mirror.checkpoints)
    if wanted == "best":
        with suppress(OSError, ValueError, KeyError, TypeError):
            wanted = int(json.loads((mirror.path / "best.json").read_text())["step"])
    if isinstance(wanted, int):
        steps, count = ([wanted] if {wanted} & {*remote, *local} else []), 1
    elif wanted == "none":
        steps = []
    else:
        steps = sorted({*remote, *local}, reverse=True)
        count = len(steps) if wanted == "all" else count
    for step in steps:
        if count > 0 and _fetch(mirror, bucket, step, step in remote, say):
            count -= 1
    return True


def _fetch(
    mirror: Mirror, bucket: Bucket, step: int, stored: bool, say: Callable[[str], None]
) -> bool:
    """Whether the mirror now holds a sound checkpoint of this step."""
    path = path_of(mirror.checkpoints, step)
    if path.is_dir() and examine(path) is None:
        return True
    if not stored:
        return False
    name = f"{CHECKPOINTS}/{path.name}"
    with suppress(_Damaged), atomic_folder(path, replace=True) as partial:
        bucket.get(f"{name}/state.json", partial / "state.json")
        with suppress(ValueError, KeyError, TypeError):  # examine says what is wrong
            for file in map(Path, read_about(partial)["files"]):
                with suppress(FileNotFoundError):
                    bucket.get(f"{name}/{file.name}", partial / file.name)
        problem = examine(partial)
        if problem is not None:
            if step not in complete(bucket.list(name)):
                raise FileNotFoundError(name)  # it was removed meanwhile
            say(f"checkpoint {path.name} of {bucket.url} is damaged ({problem})")
            raise _Damaged
        return True
    return False


class _Damaged(Exception):
    pass


def complete(objects: Iterable[str]) -> list[int]:
    """Steps of the checkpoints that have their state.json."""
    ends = (name.removeprefix(f"{CHECKPOINTS}/step-").partition("/") for name in objects)
    return sorted(int(n) for n, _, file in ends if n.isdecimal() and file == "state.json")


def _is_current(mirror: Mirror, bucket: Bucket, objects: Iterable[str], step: int) -> bool:
    state = path_of(mirror.checkpoints, step) / "state.json"
    try:
        content = state.read_bytes()
    except OSError:
        return False
    name = f"{CHECKPOINTS}/{state.parent.name}/state.json"
    return name in objects and bucket.read(name) == content


def _copy_files(mirror: Mirror, bucket: Bucket, objects: Mapping[str, Stored]) -> None:
    """All but the checkpoints; local files that the bucket does not have are removed."""
    wanted = {n: o for n, o in objects.items() if not n.startswith(NO_FILES)}
    before = mirror.record().get("versions", {})
    versions: dict[str, Any] = {}
    for name, stored in wanted.items():
        path = mirror.path / name
        if not stored.version or before.get(name) != [stored.version, *stamp(path)]:
            bucket.get(name, path)
        versions[name] = [stored.version, *stamp(path)]
    for name in local_files(mirror.path):
        if name not in wanted:
            (mirror.path / name).unlink(missing_ok=True)
    mirror.note(versions=versions)


def local_files(run: Path) -> list[str]:
    """Names of the visible files of a run, without its checkpoints."""
    names: list[str] = []
    for folder, folders, files in os.walk(run):
        at = os.path.relpath(folder, run)
        folders[:] = [n for n in folders if n[0] != "." and (at != "." or n != CHECKPOINTS)]
        names += [os.path.normpath(os.path.join(at, n)) for n in files if n[0] != "."]
    return sorted(name for name in names if name not in OWN)


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of a file; it has changed when they have."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns

"""Bucket: the objects of one run at an fsspec URL, by name, with retries."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quintet.engine.errors import RunError
from quintet.files import partial_name, rename
from quintet.urls import filesystem

T = TypeVar("T")
ATTEMPTS = 4
WHOLE = 32 << 20
"""Up to this size a file is read before it is sent: it may grow meanwhile."""
FINAL = (FileNotFoundError, PermissionError, FileExistsError, NotADirectoryError, ImportError)
"""Errors that another attempt does not mend."""
VERSION_KEYS = ("ETag", "etag", "mtime", "generation", "md5", "created", "last_modified")
S3 = ("s3", "s3a")


class Stored(NamedTuple):
    """An object: its size, and a version that changes when its content does."""

    size: int
    version: str


class Bucket:
    """Errors are those of the file system, after several attempts."""

    def __init__(self, url: str, progress: Callable[[], None] = lambda: None):
        self.url, self.progress = url, progress
        scheme = url.partition("://")[0]
        # Its default of ten parts of 50 MB would take the memory of a small model.
        options = {"max_concurrency": 2} if scheme in S3 else {}
        fresh = {"use_listings_cache": False, "skip_instance_cache": scheme != "memory"}
        try:
            extra = "s3" if scheme in S3 else "shards"
            self.fs = filesystem(url, extra, **options, **fresh)
        except ValueError as error:
            raise RunError(f"{url} is not the address of a run: {error}") from None
        self.is_local = scheme in ("file", "local")
        self.root = str(self.fs._strip_protocol(url)).rstrip("/")

    def list(self, below: str = "") -> dict[str, Stored]:
        """Objects by name; none if there is nothing. Hidden names are skipped, and so are those
        that would leave the run's folder."""
        infos = self._tried(lambda: self.fs.find(self._at(below), detail=True))
        found: dict[str, Stored] = {}
        for path, info in infos.items():
            name = path.removeprefix(f"{self.root}/")
            inside = name != path and all(p and p[0] != "." for p in name.split("/"))
            if inside and info.get("type") == "file":
                version = next((str(info[key]) for key in VERSION_KEYS if info.get(key)), "")
                found[name] = Stored(int(info["size"]), version)
        return found

    def read(self, name: str) -> bytes:
        return self._tried(lambda: self.fs.cat_file(self._at(name)))

    def write(self, name: str, content: bytes) -> None:
        self._make_folder(name)
        self._tried(lambda: self.fs.pipe_file(self._at(name), content))

    def create(self, name: str, content: bytes) -> None:
        """Write an object only if there is none. An error does not say whether it was written: an
        answer may have been lost."""
        self._make_folder(name)
        if self.is_local:  # fsspec looks first and writes then
            with open(self._at(name), "xb") as file:
                file.write(content)
        else:
            self.fs.pipe_file(self._at(name), content, mode="create")

    def put(self, path: Path, name: str) -> None:
        if path.stat().st_size <= WHOLE:
            self.write(name, path.read_bytes())
            return
        self._make_folder(name)
        counting = _counting(self.progress)
        self._tried(lambda: self.fs.put_file(str(path), self._at(name), callback=counting))

    def get(self, name: str, path: Path) -> None:
        """The file appears when it is complete."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_name(path)
        try:
            self._tried(lambda: self.fs.get_file(self._at(name), str(partial)))
            rename(partial, path, sync=False)
        finally:
            partial.unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._tried(lambda: self.fs.rm_file(self._at(name)))  # noqa: B023
            except FileNotFoundError:
                continue

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _make_folder(self, name: str) -> None:
        if self.is_local:
            self.fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)

    def _tried(self, call: Callable[[], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                result = call()
            except FINAL:
                raise
            except Exception:  # each file system raises its own
                if attempt + 1 == ATTEMPTS:
                    raise
                time.sleep(0.2 * 4**attempt)
            else:
                self.progress()
                return result
        raise AssertionError


def _counting(progress: Callable[[], None]) -> Any:
    from fsspec.callbacks import Callback

    class Counting(Callback):
        def relative_update(self, inc: int = 1) -> None:
            progress()

    return Counting()


def explain(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__

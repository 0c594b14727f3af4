"""What was fetched from afar, kept on disk up to a number of bytes; the longest unused goes first.

Several processes may use it at once: a file is complete or absent, and whoever adds one holds a
lock. It can be deleted at any time.
"""

import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

CAP = 20_000_000_000
STRIPES = 64


def root() -> Path:
    """QUINTET_CACHE, or the user's folder for caches."""
    if "QUINTET_CACHE" in os.environ:
        return Path(os.environ["QUINTET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quintet"


def cap() -> int:
    """QUINTET_CACHE_BYTES, or 20 GB."""
    given = os.environ.get("QUINTET_CACHE_BYTES", "")
    return int(given) if given.isdecimal() else CAP


class Cache:
    """Files under keys. Where the disk is full or may not be written to, it keeps nothing."""

    def __init__(self, name: str, most: int | None = None) -> None:
        self.folder = root() / name
        self.most = cap() if most is None else most
        self._told = False

    def path(self, key: str) -> Path:
        return (
            self.folder / blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        )

    def find(self, key: str) -> Path | None:
        """The file of a key, which counts as used now."""
        path = self.path(key)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def read(self, key: str, begin: int, count: int) -> bytes | None:
        """A stretch of the file of a key, or None where it is not here."""
        try:
            with open(self.path(key), "rb") as file:
                os.utime(file.fileno())
                file.seek(begin)
                return file.read(count)
        except OSError:
            return None

    def put(self, key: str, content: bytes) -> Path | None:
        """Keep a file; None where it cannot be kept."""
        if len(content) > self.most:
            return None
        path, aside = self.path(key), self.folder / f".{uuid4().hex}.writing"
        try:
            with self._locked("all"):
                self._make_room(len(content))
                aside.write_bytes(content)
                aside.replace(path)
        except OSError as error:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            self._say(error)
            return None
        return path

    def drop(self, key: str) -> None:
        with suppress(OSError):
            self.path(key).unlink(missing_ok=True)

    @contextmanager
    def claim(self, key: str) -> Generator[None, None, None]:
        """Held by one at a time, so that nothing is fetched twice; at worst nobody holds it."""
        stripe = int(self.path(key).name, 16) % STRIPES
        try:
            lock = self._locked(f"claim-{stripe:02d}")
            lock.__enter__()
        except OSError as error:
            self._say(error)
            yield
            return
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @contextmanager
    def _locked(self, name: str) -> Generator[None, None, None]:
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f".{name}.lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # closing the file gives it back, and so does death
            yield

    def _make_room(self, wanted: int) -> None:
        """Under the lock: give up the longest unused, and what a killed process left behind."""
        found: list[tuple[float, int, str]] = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(".writing"):
                os.unlink(entry.path)
            elif not entry.name.startswith("."):
                about = entry.stat()
                found.append((about.st_mtime, about.st_size, entry.path))
        used = sum(size for _, size, _ in found) + wanted
        for _, size, path in sorted(found):
            if used <= self.most:
                return
            os.unlink(path)
            used -= size

    def _say(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"{self.folder}: nothing is kept there ({error.strerror})", stacklevel=3)

"""Least-recently-used disk cache of remote data, limited in bytes.

Safe for several processes: files are complete or absent, and adding one takes a lock. It can be
deleted at any time.
"""

import os
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from quintet.files import atomic_write, cache_root

MAX_BYTES = 20_000_000_000
"""Size limit unless QUINTET_CACHE_BYTES is set."""
STRIPES = 64
"""Lock files that the keys share."""
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"
"""Signature of the Cache Directory Tagging Specification."""


class Cache:
    """Files by key. On a full or read-only disk nothing is cached."""

    def __init__(self, name: str) -> None:
        self.folder = cache_root() / name
        value = os.environ.get("QUINTET_CACHE_BYTES", "")
        self.max_bytes = int(value) if value.isdecimal() else MAX_BYTES
        self._warned = False

    def path(self, key: str) -> Path:
        name = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self.folder / name

    def find(self, key: str) -> Path | None:
        """The file of a key, marked as used."""
        path = self.path(key)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def read(self, key: str, begin: int, count: int) -> bytes | None:
        """Bytes of the file of a key, or None if it is not cached."""
        try:
            with open(self.path(key), "rb") as file:
                os.utime(file.fileno())
                file.seek(begin)
                return file.read(count)
        except OSError:
            return None

    def put(self, key: str, content: bytes) -> Path | None:
        """Cache a file; None if it cannot be written."""
        if len(content) > self.max_bytes:
            return None
        path = self.path(key)
        try:
            with self._locked("all"):
                self._evict(len(content))
                atomic_write(path, content, sync=False)
        except OSError as error:
            self._warn(error)
            return None
        return path

    def drop(self, key: str) -> None:
        with suppress(OSError):
            self.path(key).unlink(missing_ok=True)

    @contextmanager
    def claim(self, key: str) -> Generator[None, None, None]:
        """Lock a key, so that nothing is fetched twice; best effort if the disk is read-only."""
        stripe = int(self.path(key).name, 16) % STRIPES
        with ExitStack() as stack:
            try:
                stack.enter_context(self._locked(f"claim-{stripe:02d}"))
            except OSError as error:
                self._warn(error)
            yield

    @contextmanager
    def _locked(self, name: str) -> Generator[None, None, None]:
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        tag = self.folder / "CACHEDIR.TAG"  # backups and listings of data skip the folder
        if not tag.exists():
            tag.write_text(TAG, encoding="ascii")
        with open(self.folder / f".{name}.lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released on close, or when the process dies
            yield

    def _evict(self, needed: int) -> None:
        """Remove partial files and the least recently used entries; needs the lock."""
        entries: list[tuple[float, int, str]] = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(".writing"):
                os.unlink(entry.path)
            elif not entry.name.startswith(".") and entry.name != "CACHEDIR.TAG":
                with suppress(FileNotFoundError):  # dropped since, which takes no lock
                    status = entry.stat()
                    entries.append((status.st_mtime, status.st_size, entry.path))
        used = sum(size for _, size, _ in entries) + needed
        for _, size, path in sorted(entries):
            if used <= self.max_bytes:
                return
            Path(path).unlink(missing_ok=True)
            used -= size

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.folder}: nothing is cached ({error.strerror})", stacklevel=3)

"""Storage of shards: local files or any fsspec URL, read by byte ranges; the one cache of all."""

import io
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quintet.media.errors import BadFile
from quintet.media.shards.cache import Cache
from quintet.urls import filesystem, is_url

PIECE = 4 << 20
"""Bytes per request and cache entry."""
THREADS = 16
ATTEMPTS = 4
OPEN_FILES = 256
VERSION_KEYS = (
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "blob_id",
    "created",
    "updated",
)
"""Keys of fsspec's file info that change when a file does."""


class StoredFile(NamedTuple):
    """A file: URL or path, size, and a version that changes when its content does."""

    url: str
    size: int
    version: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class Store(Protocol):
    """Interface of both stores."""

    def files(self, folder: str) -> list[StoredFile]: ...
    def find(self, url: str) -> StoredFile | None: ...
    def read(self, file: StoredFile, offset: int, count: int) -> bytes: ...
    def prefetch(self, ranges: Iterable[tuple[StoredFile, int, int]]) -> None: ...
    def drop(self, file: StoredFile, offset: int, count: int) -> bool: ...


class LocalStore:
    """Local files, up to OPEN_FILES of them open."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": OrderedDict[str, int]()}  # handles are not valid in another process

    def __del__(self) -> None:
        for handle in self._open.values():
            os.close(handle)

    def files(self, folder: str) -> list[StoredFile]:
        files = (self.find(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))
        return [file for file in files if file is not None]

    def find(self, url: str) -> StoredFile | None:
        try:
            info = os.stat(url)
        except OSError:
            return None
        if not os.path.isfile(url):
            return None
        return StoredFile(url, info.st_size, str(info.st_mtime_ns))

    def read(self, file: StoredFile, offset: int, count: int) -> bytes:
        try:
            content = os.pread(self._handle(file), count, offset)
            while len(content) < count:  # one call returns at most 2 GB
                more = os.pread(self._handle(file), count - len(content), offset + len(content))
                if not more:
                    raise BadFile(file.url, "is shorter than it was", "copy it again")
                content += more
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
            raise BadFile(file.url, reason, "check the file and the disk") from error
        return content

    def _handle(self, file: StoredFile) -> int:
        if file.url not in self._open:
            while len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[file.url] = os.open(file.url, os.O_RDONLY | os.O_CLOEXEC)
        self._open.move_to_end(file.url)
        return self._open[file.url]

    def prefetch(self, ranges: Iterable[tuple[StoredFile, int, int]]) -> None:
        """Ask the kernel to read ahead."""
        if not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError):  # read() reports it
            for file, offset, count in ranges:
                os.posix_fadvise(self._handle(file), offset, count, os.POSIX_FADV_WILLNEED)

    def drop(self, file: StoredFile, offset: int, count: int) -> bool:
        return False


class RemoteStore:
    """Files at an fsspec URL, cached on disk in pieces."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cache = Cache("shards")
        self._fs: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fs": None, "_pool": None, "_owner": 0}

    def _filesystem(self) -> Any:
        """The file system of this process: connections do not survive a fork."""
        if self._owner != os.getpid():
            self._fs, self._pool = _open_filesystem(self.url), ThreadPoolExecutor(THREADS)
            self._owner = os.getpid()
        return self._fs

    def files(self, folder: str) -> list[StoredFile]:
        fs = self._filesystem()
        fs.invalidate_cache()  # of an earlier listing
        infos = _retry(folder, lambda: fs.ls(fs._strip_protocol(folder), True))
        scheme = folder.partition("://")[0]
        files = [_stored_file(f"{scheme}://{_strip_scheme(info['name'])}", info) for info in infos]
        return sorted((file for file in files if file is not None), key=lambda f: f.url)

    def find(self, url: str) -> StoredFile | None:
        try:
            info = _retry(url, lambda: self._filesystem().info(url))
        except BadFile as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        return _stored_file(url, info)

    def read(self, file: StoredFile, offset: int, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            number, inside = divmod(offset + len(content), PIECE)
            length = min(count - len(content), PIECE - inside)
            content += self._read_piece(file, number, inside, length)
        return bytes(content)

    def _read_piece(self, file: StoredFile, number: int, inside: int, count: int) -> bytes:
        content = self.cache.read(_key(file, number), inside, count)
        if content is not None and len(content) == count:
            return content
        return self._fetch(file, number)[inside : inside + count]

    def _fetch(self, file: StoredFile, number: int) -> bytes:
        """Fetch a piece, or read it from the cache if another process has just fetched it."""
        key, offset = _key(file, number), number * PIECE
        size = min(PIECE, file.size - offset)
        with self.cache.claim(key):
            content = self.cache.read(key, 0, size)
            if content is None or len(content) != size:
                content = _retry(file.url, lambda: self._download(file, offset, size))
                self.cache.put(key, content)
        return content

    def _download(self, file: StoredFile, offset: int, size: int) -> bytes:
        content = self._filesystem().cat_file(file.url, start=offset, end=offset + size)
        if len(content) > size:  # the whole file
            remedy = "use a server that supports HTTP range requests"
            raise BadFile(file.url, "is on a server that ignores byte ranges", remedy)
        if len(content) < size:  # an answer cut short, or a file that has changed
            raise EOFError(f"{len(content):,} of {size:,} bytes at {offset:,}")
        return content

    def prefetch(self, ranges: Iterable[tuple[StoredFile, int, int]]) -> None:
        """Fetch missing pieces in parallel. Errors are left to read()."""
        pieces = {
            (file, number) for file, offset, count in ranges for number in _pieces(offset, count)
        }
        missing = [each for each in sorted(pieces) if not self.cache.find(_key(*each))]
        self._filesystem()
        assert self._pool is not None
        futures = [self._pool.submit(self._fetch, *each) for each in missing]
        for each in futures:
            each.exception()

    def drop(self, file: StoredFile, offset: int, count: int) -> bool:
        """Drop cached pieces of a range, which may be damaged."""
        for number in _pieces(offset, count):
            self.cache.drop(_key(file, number))
        return True


class Unpacked:
    """Files that can only be unpacked as a whole, in the cache in place of the packed ones."""

    def __init__(self, store: Store) -> None:
        self._store, self.cache = store, Cache("shards")

    def read(
        self, file: StoredFile, unpack: Callable[[bytes], bytes], offset: int, count: int
    ) -> bytes:
        """A range of the unpacked file."""
        key = _key(file, -2)
        content = self.cache.read(key, offset, count)
        if content is not None and len(content) == count:
            return content
        self._store.prefetch([(file, 0, file.size)])
        packed = self._store.read(file, 0, file.size)  # not under the lock: it takes its own
        with self.cache.claim(key):
            content = self.cache.read(key, offset, count)
            if content is not None and len(content) == count:
                return content
            plain = unpack(packed)
            self._store.drop(file, 0, file.size)
            self.cache.put(key, plain)
        return plain[offset : offset + count]


class StoredStream(io.RawIOBase):
    """A stored file, as a stream that other libraries read."""

    def __init__(self, store: Store, file: StoredFile) -> None:
        self._store, self._file, self._position = store, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._file.size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._file.size - self._position))
        buffer[:count] = self._store.read(self._file, self._position, count)
        self._position += count
        return count


def _pieces(offset: int, count: int) -> range:
    """Numbers of the pieces that a byte range touches."""
    return range(offset // PIECE, (offset + max(count, 1) - 1) // PIECE + 1)


def _key(file: StoredFile, number: int) -> str:
    return f"{file.url}\n{file.size}\n{file.version}\n{number}"


def _strip_scheme(name: str) -> str:
    return name.partition("://")[2] if "://" in name else name


def _stored_file(url: str, info: dict[str, Any]) -> StoredFile | None:
    if info.get("type") != "file" or info.get("size") is None:
        return None
    version = next((str(info[key]) for key in VERSION_KEYS if info.get(key)), "")
    return StoredFile(url, int(info["size"]), version)


def _retry(url: str, call: Any) -> Any:
    """Call a file system, with retries for network errors."""
    for attempt in range(ATTEMPTS):
        try:
            return call()
        except FileNotFoundError as error:
            raise BadFile(url, "does not exist", "check the address") from error
        except (ImportError, BadFile):
            raise
        except Exception as error:  # each file system raises its own
            if attempt + 1 == ATTEMPTS:
                why = f"cannot be read ({type(error).__name__}: {str(error)[:200]})"
                remedy = "check address, permissions and network"
                raise BadFile(url, why, remedy) from error
            time.sleep(0.2 * 4**attempt)
    raise AssertionError


def _open_filesystem(url: str) -> Any:
    try:
        return filesystem(url, "shards")
    except ValueError as error:
        raise BadFile(url, f"is not a readable address ({error})", "check it") from error


def store_of(url: str) -> Store:
    return RemoteStore(url) if is_url(url) else LocalStore()


def local_index(store: Store, file: StoredFile) -> Path:
    """Local path of an index: the file itself, or its cached copy."""
    if isinstance(store, LocalStore):
        return Path(file.url)
    cache = Cache("shard-indexes")
    key = _key(file, -1)
    return cache.find(key) or cache_index(cache, key, store.read(file, 0, file.size), file.url)


def cache_index(cache: Cache, key: str, content: bytes, url: str) -> Path:
    """Put an index into the cache, or raise."""
    path = cache.put(key, content)
    if path is None:
        reason = "its index cannot be cached on this machine"
        raise BadFile(url, reason, f"make room in {cache.folder}, or set QUINTET_CACHE")
    return path

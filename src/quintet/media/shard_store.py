"""Where shards lie: on this machine, or at any address of fsspec; read by ranges of bytes."""

import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quintet.media.errors import BadFile
from quintet.media.shard_cache import Cache

PIECE = 4 << 20
"""Bytes that are fetched and kept together."""
THREADS = 16
TRIES = 3
OPEN_FILES = 256
FOREIGN = (
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "blob_id",
    "created",
    "updated",
)
"""What file systems call that which changes when a file does."""


class Place(NamedTuple):
    """A file: what it is called, its size, and a token that changes when it does."""

    address: str
    size: int
    token: str

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]


class Store(Protocol):
    """What both kinds offer."""

    def files(self, folder: str) -> list[Place]: ...
    def find(self, address: str) -> Place | None: ...
    def read(self, place: Place, begin: int, count: int) -> bytes: ...
    def prefetch(self, ranges: Iterable[tuple[Place, int, int]]) -> None: ...
    def drop(self, place: Place, begin: int, count: int) -> bool: ...


class Disk:
    """Files of this machine, a few hundred of them open at a time."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": OrderedDict[str, int]()}

    def __del__(self) -> None:
        for handle in self._open.values():
            os.close(handle)

    def files(self, folder: str) -> list[Place]:
        found = (self.find(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))
        return [place for place in found if place is not None]

    def find(self, address: str) -> Place | None:
        try:
            about = os.stat(address)
        except OSError:
            return None
        if not os.path.isfile(address):
            return None
        return Place(address, about.st_size, str(about.st_mtime_ns))

    def read(self, place: Place, begin: int, count: int) -> bytes:
        try:
            found = os.pread(self._handle(place), count, begin)
            while len(found) < count:  # one call gives 2 GB at most
                more = os.pread(self._handle(place), count - len(found), begin + len(found))
                if not more:
                    raise BadFile(place.address, "is shorter than it was", "copy it again")
                found += more
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
            raise BadFile(place.address, reason, "check the file and the disk") from error
        return found

    def _handle(self, place: Place) -> int:
        if place.address not in self._open:
            while len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[place.address] = os.open(place.address, os.O_RDONLY | os.O_CLOEXEC)
        self._open.move_to_end(place.address)
        return self._open[place.address]

    def prefetch(self, ranges: Iterable[tuple[Place, int, int]]) -> None:
        """The system is told, and reads from the disk meanwhile."""
        if not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError):  # reading will meet it again, and say it
            for place, begin, count in ranges:
                os.posix_fadvise(self._handle(place), begin, count, os.POSIX_FADV_WILLNEED)

    def drop(self, place: Place, begin: int, count: int) -> bool:
        return False


class Afar:
    """Files at an address of fsspec, in pieces that are kept on disk."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cache = Cache("shards")
        self._files: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": None, "_pool": None, "_owner": 0}

    def _here(self) -> Any:
        """The file system, made anew in a forked process: connections cannot be shared."""
        if self._owner != os.getpid():
            self._files, self._pool = _file_system(self.address), ThreadPoolExecutor(THREADS)
            self._owner = os.getpid()
        return self._files

    def files(self, folder: str) -> list[Place]:
        found = _tried(folder, lambda: self._here().ls(self._here()._strip_protocol(folder), True))
        scheme = folder.partition("://")[0]
        places = [_place(f"{scheme}://{_bare(each['name'])}", each) for each in found]
        return sorted((place for place in places if place is not None), key=lambda p: p.address)

    def find(self, address: str) -> Place | None:
        try:
            about = _tried(address, lambda: self._here().info(address))
        except BadFile as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        return _place(address, about)

    def read(self, place: Place, begin: int, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            number, inside = divmod(begin + len(found), PIECE)
            wanted = min(count - len(found), PIECE - inside)
            found += self._stretch(place, number, inside, wanted)
        return bytes(found)

    def _stretch(self, place: Place, number: int, inside: int, count: int) -> bytes:
        found = self.cache.read(_key(place, number), inside, count)
        if found is not None and len(found) == count:
            return found
        return self._fetch(place, number)[inside : inside + count]

    def _fetch(self, place: Place, number: int) -> bytes:
        """A piece, from the cache if another process has put it there meanwhile."""
        key, begin = _key(place, number), number * PIECE
        size = min(PIECE, place.size - begin)
        with self.cache.claim(key):
            found = self.cache.read(key, 0, size)
            if found is None or len(found) != size:
                found = _tried(
                    place.address,
                    lambda: self._here().cat_file(place.address, start=begin, end=begin + size),
                )
                if len(found) != size:
                    raise BadFile(place.address, "is shorter than it was", "check what is there")
                self.cache.put(key, found)
        return found

    def prefetch(self, ranges: Iterable[tuple[Place, int, int]]) -> None:
        """All that is not here yet, many pieces at a time. What fails is met again in reading."""
        wanted = {
            (place, number)
            for place, begin, count in ranges
            for number in range(begin // PIECE, (begin + max(count, 1) - 1) // PIECE + 1)
        }
        missing = [each for each in sorted(wanted) if not self.cache.find(_key(*each))]
        self._here()
        assert self._pool is not None
        waiting = [self._pool.submit(self._fetch, *each) for each in missing]
        for each in waiting:
            each.exception()

    def drop(self, place: Place, begin: int, count: int) -> bool:
        """Forget what is kept of a stretch: it may have been damaged here."""
        numbers = range(begin // PIECE, (begin + max(count, 1) - 1) // PIECE + 1)
        for number in numbers:
            self.cache.drop(_key(place, number))
        return True


def _key(place: Place, number: int) -> str:
    return f"{place.address}\n{place.size}\n{place.token}\n{number}"


def _bare(name: str) -> str:
    return name.partition("://")[2] if "://" in name else name


def _place(address: str, about: dict[str, Any]) -> Place | None:
    if about.get("type") != "file" or about.get("size") is None:
        return None
    token = next((str(about[key]) for key in FOREIGN if about.get(key)), "")
    return Place(address, int(about["size"]), token)


def _tried(address: str, ask: Any) -> Any:
    """What a file system answers; tried again where it may be the network."""
    for attempt in range(TRIES):
        try:
            return ask()
        except FileNotFoundError as error:
            raise BadFile(address, "is not there", "check the address") from error
        except (ImportError, BadFile):
            raise
        except Exception as error:  # each file system has its own
            if attempt + 1 == TRIES:
                why = f"cannot be read ({type(error).__name__}: {str(error)[:200]})"
                remedy = "check address, rights and network"
                raise BadFile(address, why, remedy) from error
            time.sleep(0.2 * 4**attempt)
    raise AssertionError


def _file_system(address: str) -> Any:
    scheme = address.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(f"{scheme}:// needs fsspec: pip install 'quintet[shards]'") from error
    try:
        return url_to_fs(address)[0]
    except ImportError as error:
        hint = f"{scheme}:// needs more than 'quintet[shards]': {str(error).splitlines()[0]}"
        raise ImportError(hint) from error
    except ValueError as error:
        raise BadFile(address, f"is no address that can be read ({error})", "check it") from error


def store_of(address: str) -> Store:
    return Afar(address) if "://" in address else Disk()


def read_whole(store: Store, place: Place) -> bytes:
    return store.read(place, 0, place.size)


def local_index(store: Store, place: Place) -> Path:
    """A small file as one of this machine: itself, or a copy that is kept."""
    if isinstance(store, Disk):
        return Path(place.address)
    cache = Cache("shard-indexes")
    key = _key(place, -1)
    return cache.find(key) or kept(cache, key, read_whole(store, place), place.address)


def kept(cache: Cache, key: str, content: bytes, address: str) -> Path:
    """Put into the cache, where it must find room."""
    path = cache.put(key, content)
    if path is None:
        reason = "its index cannot be kept on this machine"
        raise BadFile(address, reason, f"make room in {cache.folder}, or set QUINTET_CACHE")
    return path

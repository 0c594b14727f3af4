"""Dataset in shards: tar archives with random access through an index, and whatever else holds
samples.

Random order, validation split and decoding are the same as for a folder of files. Nothing is
extracted: a member is read into memory and handed to its decoder.
"""

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile
from quintet.media.held_out import Contents
from quintet.media.shards.cache import Cache
from quintet.media.shards.index import Index, digest_of
from quintet.media.shards.indexing import build_index
from quintet.media.shards.listing import Shard, is_sharded, list_shards, split_window
from quintet.media.shards.member import Header, Member
from quintet.media.shards.records import Records, read_index
from quintet.media.shards.store import LocalStore, Store, StoredFile, cache_index, local_index
from quintet.media.tables import Table, is_table

Numbers = npt.NDArray[np.int64]
AHEAD = 64 << 20
"""Bytes of read-ahead while a shard is scanned."""


class Shards:
    """The readable samples of all shards, in packing order."""

    def __init__(self, data: str, suffixes: Sequence[str], what: str) -> None:
        self.location, self.window = split_window(data)
        self._store, shards = list_shards(self.location)
        self._tars = [shard.tar for shard in shards]
        with ThreadPoolExecutor(1 if isinstance(self._store, LocalStore) else 16) as pool:
            indexed = pool.map(lambda shard: _index(self._store, shard, suffixes), shards)
            self._indexes = list(indexed)
        _check_set(self.location, self._indexes)
        self._rows = [_readable_rows(index, suffixes) for index in self._indexes]
        self._starts = [0, *accumulate(len(rows) for rows in self._rows)]
        if not len(self):
            reason = f"no shard holds {what} ({', '.join(suffixes)})"
            raise BadFile(self.location, reason, "check their content")

    def __len__(self) -> int:
        return self._starts[-1]

    def _at(self, number: int) -> tuple[int, int]:
        """Shard of a sample, and its row in the index."""
        shard = bisect_right(self._starts, number) - 1
        return shard, int(self._rows[shard][number - self._starts[shard]])

    def names(self) -> Iterator[bytes]:
        """Names of all samples, in UTF-8."""
        for index, rows in zip(self._indexes, self._rows):
            names = index.all_names()
            yield from names if len(rows) == len(names) else (names[row] for row in rows)

    def has_text(self) -> npt.NDArray[np.bool_]:
        """Mask of the samples with a caption."""
        masks = [index.has_text[rows] != 0 for index, rows in zip(self._indexes, self._rows)]
        return np.concatenate(masks)

    def contents(self, numbers: Numbers) -> Contents:
        """What tells these samples apart, from the indexes."""
        columns = list(zip(self._indexes, self._rows))
        lengths = np.concatenate([index.length[rows] for index, rows in columns])[numbers]
        digests = np.concatenate([index.digest[rows, :8] for index, rows in columns])[numbers]
        keys = np.ascontiguousarray(digests).view("<u8").ravel()
        return Contents(len(numbers), (), lambda n: lengths[n], None, lambda n: keys[n])

    def name(self, number: int) -> str:
        """Path of the file relative to the packed folder, or the member's name."""
        shard, row = self._at(number)
        return self._indexes[shard].name(row)

    def row(self, number: int) -> dict[str, Any]:
        """Metadata of a sample: caption under `text`, several under `texts`."""
        shard, row = self._at(number)
        return self._indexes[shard].row(row)

    def path(self, number: int) -> Member:
        """The file as a lazy path, read when opened."""
        shard, row = self._at(number)
        tar, index = self._tars[shard], self._indexes[shard]
        label = f"{tar.name}/{index.name(row)}"
        header = Header(*index.header[row].tolist())
        return Member.of(
            label, int(index.length[row]), lambda: self._load(shard, row, label), header
        )

    def _load(self, shard: int, row: int, label: str) -> bytes:
        index, tar = self._indexes[shard], self._tars[shard]
        offset, length = int(index.offset[row]), int(index.length[row])
        digest = index.digest[row].tobytes()
        content = self._store.read(tar, offset, length)
        # A cached copy may be damaged: drop it and fetch the range once more.
        if digest_of(content) != digest and self._store.drop(tar, offset, length):
            content = self._store.read(tar, offset, length)
        if digest_of(content) != digest:
            reason = "does not match its digest in the index"
            raise BadFile(label, reason, f"copy {tar.name} again")
        return content

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Announce samples that will be read next."""
        ranges: list[tuple[StoredFile, int, int]] = []
        for number in numbers:
            shard, row = self._at(number)
            index = self._indexes[shard]
            ranges.append((self._tars[shard], int(index.offset[row]), int(index.length[row])))
        self._store.prefetch(ranges)


class Samples(Protocol):
    """Samples that are not files of a folder: in tars, in tables, in MDS or in LitData."""

    window: int
    """Shuffle window in samples; 0 for a global shuffle."""

    def __len__(self) -> int: ...
    def name(self, number: int) -> str: ...
    def names(self) -> Iterator[bytes]: ...
    def has_text(self) -> npt.NDArray[np.bool_]: ...
    def row(self, number: int) -> dict[str, Any]: ...
    def contents(self, numbers: Numbers) -> Contents: ...
    def path(self, number: int) -> Member: ...
    def prefetch(self, numbers: Sequence[int]) -> None: ...


def open_shards(data: str, suffixes: Sequence[str], what: str) -> Samples | None:
    """The samples at `data`; None if it is a folder of files or does not exist."""
    location, window = split_window(data)
    index = read_index(location)
    if index is not None:
        return Records(location, window, index, suffixes, what)
    if is_table(location):
        return Table(location, window, suffixes, what)
    if is_sharded(location, suffixes):
        return Shards(data, suffixes, what)
    if window:
        raise BadFile(data, "has a window, but is not sharded", "drop '#window='")
    return None


def holds_samples(data: str, suffixes: Sequence[str]) -> bool:
    """Whether `open_shards` finds samples there."""
    location = split_window(data)[0]
    return is_table(location) or is_sharded(location, suffixes) or read_index(location) is not None


def _readable_rows(index: Index, suffixes: Sequence[str]) -> Numbers:
    """Rows of the samples with one of these suffixes."""
    readable = np.array([suffix in suffixes for suffix in index.suffixes], np.bool_)
    return np.arange(len(index)) if readable.all() else np.flatnonzero(readable[index.kind])


def _check_set(location: str, indexes: Sequence[Index]) -> None:
    """Check that a folder holds all shards that were packed together."""
    if location.endswith(".tar"):
        return
    packings = [index.packing for index in indexes if index.packing is not None]
    for name, count in {(packing.name, packing.total) for packing in packings}:
        present = {packing.number for packing in packings if packing.name == name}
        missing = count - len(present)
        if missing:
            first = next(number for number in range(count) if number not in present)
            reason = f"{missing} of {count} shards are missing, number {first:06d} is the first"
            raise BadFile(location, reason, "copy them, or select shards by a pattern")


def _index(store: Store, shard: Shard, suffixes: Sequence[str]) -> Index:
    """Index of a shard: the one beside it, or one built now and cached."""
    tar = shard.tar
    if shard.index_file is not None:
        return Index(local_index(store, shard.index_file), tar.name, tar.size)
    cache = Cache("shard-indexes")
    head = digest_of(store.read(tar, 0, min(tar.size, 4096))).hex()
    key = f"{tar.url}\n{tar.size}\n{tar.version}\n{head}\n{' '.join(sorted(suffixes))}"
    path = cache.find(key)
    if path is None:
        with cache.claim(key):  # another process may have built it meanwhile
            path = cache.find(key) or cache_index(cache, key, _build(store, tar, suffixes), tar.url)
    try:
        index = Index(path, tar.name, tar.size)
    except BadFile:
        path = cache_index(cache, key, _build(store, tar, suffixes), tar.url)
        index = Index(path, tar.name, tar.size)
    _warn_skipped(tar, index)
    return index


def _build(store: Store, tar: StoredFile, suffixes: Sequence[str]) -> bytes:
    """Build the index of a shard by scanning it."""
    prefetched = 0

    def read(begin: int, count: int) -> bytes:
        nonlocal prefetched
        if begin + count > prefetched:
            store.prefetch([(tar, begin, min(count + AHEAD, tar.size - begin))])
            prefetched = begin + count + AHEAD
        return store.read(tar, begin, count)

    return build_index(read, tar.size, suffixes)


def _warn_skipped(tar: StoredFile, index: Index) -> None:
    """Warn about skipped members of a foreign shard."""
    skipped, problems = index.about.get("skipped"), index.about.get("problems")
    if isinstance(skipped, int) and isinstance(problems, list) and problems:
        more = f", and {skipped - 1} more" if skipped > 1 else ""
        warnings.warn(f"{tar.name}: {problems[0]}{more}; skipped", stacklevel=2)

"""Data in shards: tar archives whose samples are read at any place through an index.

What is random about training, which samples are held out, and how a file is decoded are the same
as with a folder of files. Nothing is extracted: a member comes into memory and goes to its reader.
"""

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile
from quintet.media.shard_cache import Cache
from quintet.media.shard_foreign import index_of
from quintet.media.shard_index import Index, digest_of
from quintet.media.shard_member import Facts, Member
from quintet.media.shard_places import Shard, are_shards, shards_at, without_window
from quintet.media.shard_store import Disk, Place, Store, kept, local_index

Numbers = npt.NDArray[np.int64]
AHEAD = 64 << 20
"""Bytes that are fetched ahead where a shard is read from front to end."""


class Shards:
    """The samples of all shards that a room can read, in the order in which they were packed."""

    def __init__(self, data: str, suffixes: Sequence[str], what: str) -> None:
        self.place, self.window = without_window(data)
        self._store, found = shards_at(self.place)
        self._tars = [shard.tar for shard in found]
        with ThreadPoolExecutor(1 if isinstance(self._store, Disk) else 16) as pool:
            indexed = pool.map(lambda shard: _index(self._store, shard, suffixes), found)
            self._indexes = list(indexed)
        _check_set(self.place, self._indexes)
        self._rows = [_wanted(index, suffixes) for index in self._indexes]
        self._starts = [0, *accumulate(len(rows) for rows in self._rows)]
        if not len(self):
            reason = f"no shard holds {what} ({', '.join(suffixes)})"
            raise BadFile(self.place, reason, "check what is in them")

    def __len__(self) -> int:
        return self._starts[-1]

    def _at(self, number: int) -> tuple[int, int]:
        """The shard of a sample, and its row in that one's index."""
        shard = bisect_right(self._starts, number) - 1
        return shard, int(self._rows[shard][number - self._starts[shard]])

    def names(self) -> Iterator[bytes]:
        """Of all samples, as bytes of UTF-8."""
        for index, rows in zip(self._indexes, self._rows):
            found = index.all_names()
            yield from found if len(rows) == len(found) else (found[row] for row in rows)

    def said(self) -> npt.NDArray[np.bool_]:
        """Whether there is a text for each sample."""
        found = [index.said[rows] != 0 for index, rows in zip(self._indexes, self._rows)]
        return np.concatenate(found)

    def name(self, number: int) -> str:
        """The path of the file under the folder that was packed; of others, the member's."""
        shard, row = self._at(number)
        return self._indexes[shard].name(row)

    def row(self, number: int) -> dict[str, Any]:
        """What is said of a sample: the text under `text`, several under `texts`."""
        shard, row = self._at(number)
        return self._indexes[shard].row(row)

    def path(self, number: int) -> Member:
        """The file, which is read when it is opened."""
        shard, row = self._at(number)
        tar, index = self._tars[shard], self._indexes[shard]
        label = f"{tar.name}/{index.name(row)}"
        facts = Facts(*index.facts[row].tolist())
        return Member.of(
            label, int(index.length[row]), lambda: self._load(shard, row, label), facts
        )

    def _load(self, shard: int, row: int, label: str) -> bytes:
        index, tar = self._indexes[shard], self._tars[shard]
        offset, length = int(index.offset[row]), int(index.length[row])
        digest = index.digest[row].tobytes()
        content = self._store.read(tar, offset, length)
        if digest_of(content) != digest and self._store.drop(tar, offset, length):
            content = self._store.read(tar, offset, length)
        if digest_of(content) != digest:
            reason = "does not have the digest that the index gives"
            raise BadFile(label, reason, f"copy {tar.name} again")
        return content

    def prefetch(self, numbers: Sequence[int]) -> None:
        """A word to the store that these will be read next."""
        ranges: list[tuple[Place, int, int]] = []
        for number in numbers:
            shard, row = self._at(number)
            index = self._indexes[shard]
            ranges.append((self._tars[shard], int(index.offset[row]), int(index.length[row])))
        self._store.prefetch(ranges)


def open_shards(data: str, suffixes: Sequence[str], what: str) -> Shards | None:
    """The shards that `data` names; None where it is a folder of files, or nothing."""
    place, window = without_window(data)
    if are_shards(place, suffixes):
        return Shards(data, suffixes, what)
    if window:
        raise BadFile(data, "asks for a window, but is no shards", "leave '#window=' away")
    return None


def _wanted(index: Index, suffixes: Sequence[str]) -> Numbers:
    """Rows of the samples that a room can read."""
    readable = np.array([suffix in suffixes for suffix in index.suffixes], np.bool_)
    return np.arange(len(index)) if readable.all() else np.flatnonzero(readable[index.kind])


def _check_set(place: str, indexes: Sequence[Index]) -> None:
    """Where a folder is named, all that were packed together must be there."""
    if place.endswith(".tar"):
        return
    packings = [index.packing for index in indexes if index.packing is not None]
    for name, count in {(packing.name, packing.among) for packing in packings}:
        here = {packing.number for packing in packings if packing.name == name}
        lost = count - len(here)
        if lost:
            first = next(number for number in range(count) if number not in here)
            reason = f"{lost} of {count} shards are missing, number {first:06d} is the first"
            raise BadFile(place, reason, "copy them, or name those that are wanted by a pattern")


def _index(store: Store, shard: Shard, suffixes: Sequence[str]) -> Index:
    """The one that came with the shard, or one that is made now and kept."""
    tar = shard.tar
    if shard.listed is not None:
        return Index(local_index(store, shard.listed), tar.name, tar.size)
    cache = Cache("shard-indexes")
    head = digest_of(store.read(tar, 0, min(tar.size, 4096))).hex()
    place = f"{tar.address}\n{tar.size}\n{tar.token}\n{head}\n{' '.join(sorted(suffixes))}"
    path = cache.find(place)
    if path is None:
        with cache.claim(place):
            path = cache.find(place) or kept(cache, place, _made(store, tar, suffixes), tar.address)
    try:
        index = Index(path, tar.name, tar.size)
    except BadFile:
        path = kept(cache, place, _made(store, tar, suffixes), tar.address)
        index = Index(path, tar.name, tar.size)
    _tell(tar, index)
    return index


def _made(store: Store, tar: Place, suffixes: Sequence[str]) -> bytes:
    """The index of a shard, which is read from front to end for it."""
    told = 0

    def read(begin: int, count: int) -> bytes:
        nonlocal told
        if begin + count > told:
            store.prefetch([(tar, begin, min(count + AHEAD, tar.size - begin))])
            told = begin + count + AHEAD
        return store.read(tar, begin, count)

    return index_of(read, tar.size, suffixes)


def _tell(tar: Place, index: Index) -> None:
    """What of a shard from elsewhere is passed over."""
    skipped, problems = index.about.get("skipped"), index.about.get("problems")
    if isinstance(skipped, int) and isinstance(problems, list) and problems:
        more = f", and {skipped - 1} more" if skipped > 1 else ""
        warnings.warn(f"{tar.name}: {problems[0]}{more}; passed over", stacklevel=2)

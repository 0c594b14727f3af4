"""Samples of MDS and LitData folders, from their `index.json` on; nothing is scanned.

The order is that of the index, and a sample is named by its shard and its row there.
"""

import json
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile
from quintet.media.folder import TEXT_KEYS, with_text
from quintet.media.held_out import Contents, Keys, content_digest, keys_of
from quintet.media.ranges import say
from quintet.media.shards import litdata, mds
from quintet.media.shards.columns import Chunk, cut, media_column
from quintet.media.shards.indexing import TEXTS
from quintet.media.shards.listing import TAR
from quintet.media.shards.member import Header, Member
from quintet.media.shards.store import Store, StoredFile, Unpacked, store_of
from quintet.media.tables import MAX_COMPARED, PARQUET

INDEX = "index.json"
FORMATS = {"shards": mds.chunks, "chunks": litdata.chunks}
"""The format of an index, by the key of its list of files."""
MAX_INDEX = 1 << 30
BLOCK = 256
"""Samples that are announced together where all are read."""
DAMAGE = (ValueError, LookupError, EOFError, OSError, struct.error)

Numbers = npt.NDArray[np.int64]


def read_index(location: str) -> dict[str, Any] | None:
    """The index at a location; None if there is none, or one of something else."""
    if location.endswith((TAR, PARQUET)):
        return None
    store = store_of(location)
    file = store.find(f"{location.rstrip('/')}/{INDEX}")
    if file is None or file.size > MAX_INDEX:
        return None
    try:
        index = json.loads(store.read(file, 0, file.size))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadFile):
            raise
        return None
    known = isinstance(index, dict) and any(isinstance(index.get(key), list) for key in FORMATS)
    return index if known else None


class Records:
    """The samples of all files that an index lists, in its order."""

    def __init__(
        self, data: str, window: int, index: dict[str, Any], suffixes: Sequence[str], what: str
    ) -> None:
        self.location, self.window = data.rstrip("/"), window
        url = f"{self.location}/{INDEX}"
        try:
            key = next(key for key in FORMATS if key in index)
            self._chunks = FORMATS[key](index, url)
        except (*DAMAGE, TypeError, AttributeError) as error:
            if isinstance(error, BadFile):
                raise
            reason = f"is not a valid index ({type(error).__name__}: {str(error)[:100]})"
            raise BadFile(url, reason, "copy it again") from error
        self._starts = [0, *accumulate(chunk.samples for chunk in self._chunks)]
        if not len(self):
            raise BadFile(url, f"lists no {what}", "check the data set")
        # Shards may have different columns, as those of merged data sets do.
        kinds = {chunk.columns for chunk in self._chunks}
        media = {kind: media_column(kind, suffixes, what, url) for kind in kinds}
        self._media = [media[chunk.columns] for chunk in self._chunks]
        self._store = store_of(self.location)
        self._files = _find(self._store, self.location, self._chunks)
        self._unpacked = Unpacked(self._store)
        self._packed, self._offsets = set[int](), dict[int, Numbers]()
        self._last: tuple[int, list[bytes]] = -1, []

    def __len__(self) -> int:
        return self._starts[-1]

    def _at(self, number: int) -> tuple[int, int]:
        """Shard of a sample, and its row there."""
        shard = bisect_right(self._starts, number) - 1
        return shard, number - self._starts[shard]

    def name(self, number: int) -> str:
        shard, row = self._at(number)
        stem = PurePosixPath(self._chunks[shard].names[0]).with_suffix("")
        return f"{stem}-{row:08d}{self._media[shard][1]}"

    def names(self) -> Iterator[bytes]:
        """Names of all samples, in UTF-8."""
        return (self.name(number).encode() for number in range(len(self)))

    def row(self, number: int) -> dict[str, Any]:
        """The plain values of a sample: caption under `text`, several under `texts`."""
        columns, row = self._chunks[self._at(number)[0]].columns, dict[str, Any]()
        for position, part in enumerate(self._parts(number)):
            name, decode, suffix, _ = columns[position]
            if suffix is None and decode and part:
                value = self._decoded(number, position, part)
                row |= value if name == "json" and isinstance(value, dict) else {name: value}
        row = with_text(row)
        other = next((row[key] for key in ("texts", *TEXTS) if row.get(key)), None)
        return row if row.get("text") or not other else with_text({**row, "text": other})

    def has_text(self) -> npt.NDArray[np.bool_]:
        """Mask of the samples with a caption; of large data, of those with a column for it."""
        keys = {"texts", "json", *TEXT_KEYS, *TEXTS}
        counts = [chunk.samples for chunk in self._chunks]
        named = [not keys.isdisjoint(c.name for c in chunk.columns) for chunk in self._chunks]
        mask = np.repeat(np.array(named, np.bool_), counts)
        if mask.any() and not self._is_large("for missing captions"):
            for number in self._announced(np.flatnonzero(mask)):
                mask[number] = bool(self.row(number).get("text"))
        return mask

    def contents(self, numbers: Numbers) -> Contents:
        """What tells these samples apart; the content of small data alone, as all is read."""
        places = [f"{self.location}/{self.name(int(number))}" for number in numbers]
        if self._is_large("for copies of held-out files"):
            return Contents(len(places), places)

        def digests(chosen: Numbers) -> Keys:
            read = self._announced(numbers[chosen])
            return keys_of((content_digest(self.path(number)), "") for number in read)

        return Contents(len(places), places, digests=digests)

    def _is_large(self, why: str) -> bool:
        if sum(file.size for file in self._files) <= MAX_COMPARED:
            return False
        say(f"{self.location}: more than {MAX_COMPARED / 1e9:.0f} GB, not searched {why}")
        return True

    def _announced(self, numbers: Numbers) -> Iterator[int]:
        for begin in range(0, len(numbers), BLOCK):
            block = numbers[begin : begin + BLOCK].tolist()
            self.prefetch(block)
            yield from block

    def path(self, number: int) -> Member:
        """The file as a lazy path, read when opened."""
        return Member.of(self.name(number), -1, lambda: self._load(number), Header())

    def _load(self, number: int) -> bytes:
        position = self._media[self._at(number)[0]][0]
        return self._decoded(number, position, self._parts(number)[position])

    # -- reading --------------------------------------------------------------------------------

    def _decoded(self, number: int, position: int, part: bytes) -> Any:
        shard, row = self._at(number)
        column = self._chunks[shard].columns[position]
        assert column.decode is not None
        try:
            return column.decode(part)
        except DAMAGE as error:
            reason = f"cannot be decoded in sample {row}: column {column.name!r}, {error}"
            raise BadFile(self._files[shard].url, reason, "write it again") from error

    def _parts(self, number: int) -> list[bytes]:
        """The columns of a sample; those of the last one are kept for its caption."""
        last, parts = self._last
        if last != number:
            shard, row = self._at(number)
            chunk, file = self._chunks[shard], self._files[shard]
            try:
                begin, end = self._offsets_of(shard)[row : row + 2].tolist()
                sample = self._read(shard, begin, end - begin)
                parts = cut(chunk.columns, chunk.inflate(sample) if chunk.inflate else sample)
            except DAMAGE as error:
                remedy = error.remedy if isinstance(error, BadFile) else "copy it again"
                reason = error.reason if isinstance(error, BadFile) else f"is damaged ({error})"
                raise BadFile(file.url, f"{reason} (sample {row})", remedy) from error
            self._last = number, parts
        return parts

    def _offsets_of(self, shard: int) -> Numbers:
        """Where each sample of a shard begins, and the last one ends."""
        if shard not in self._offsets:
            chunk, file = self._chunks[shard], self._files[shard]
            size = 4 * (chunk.samples + 2)
            head = self._store.read(file, 0, min(size, file.size))
            if chunk.packed(file.name, head):
                self._packed.add(shard)
                head = self._read(shard, 0, size)
            offsets = np.frombuffer(head, "<u4").astype(np.int64)
            last = file.size if shard not in self._packed else offsets[-1]
            if len(offsets) != chunk.samples + 2 or offsets[0] != chunk.samples:
                raise ValueError(f"it does not have the {chunk.samples:,} samples of the index")
            if offsets[1] < size or (np.diff(offsets[1:]) < 0).any() or offsets[-1] > last:
                raise ValueError("its offsets point outside of it")
            self._offsets[shard] = offsets[1:]
        return self._offsets[shard]

    def _read(self, shard: int, begin: int, count: int) -> bytes:
        file, unpack = self._files[shard], self._chunks[shard].unpack
        if shard in self._packed and unpack is not None:
            return self._unpacked.read(file, unpack, begin, count)
        return self._store.read(file, begin, count)

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Announce samples that will be read next."""
        places = [self._at(number) for number in numbers]
        shards = sorted({shard for shard, _ in places} - {*self._offsets})
        sizes = [4 * (self._chunks[shard].samples + 2) for shard in shards]
        self._store.prefetch((self._files[s], 0, size) for s, size in zip(shards, sizes))
        ranges: list[tuple[StoredFile, int, int]] = []
        for shard, row in places:
            try:
                begin, end = self._offsets_of(shard)[row : row + 2].tolist()
            except DAMAGE:
                continue  # reading the sample reports it
            if shard not in self._packed:
                ranges.append((self._files[shard], begin, end - begin))
        self._store.prefetch(ranges)


def _find(store: Store, location: str, chunks: Sequence[Chunk]) -> list[StoredFile]:
    """The file of each chunk; a missing one, or one of another size, is an error."""
    for name in (name for chunk in chunks for name in chunk.names):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            raise BadFile(f"{location}/{INDEX}", f"names {name!r}, outside of it", "remove it")
    # Web servers list no folders, or without sizes.
    listed = [] if location.startswith("http") else store.files(location)
    present = {file.name: file for file in listed}

    def find(chunk: Chunk) -> StoredFile:
        urls = [f"{location}/{name}" for name in chunk.names]
        known = (present.get(name) or store.find(url) for name, url in zip(chunk.names, urls))
        file = next((file for file in known if file is not None), None)
        if file is None:
            raise BadFile(urls[0], f"is missing, though {INDEX} lists it", "copy it again")
        first = chunk.names[0].rpartition("/")[2]
        if file.name == first and chunk.size not in (None, file.size):
            reason = f"has {file.size:,} bytes, not the {chunk.size:,} of {INDEX}"
            raise BadFile(file.url, reason, "copy it again")
        return file

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(find, chunks))

"""Packing a folder into shards: plain tar archives that WebDataset reads, each with an index.

A sample is `000000012.jpg` with its metadata in `000000012.json` and its caption in
`000000012.txt`. Packing is deterministic: equal folders give equal bytes. The output folder appears
complete or not at all.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from quintet.files import atomic_folder, atomic_write
from quintet.media.errors import BadFile, printable
from quintet.media.folder import relative_name
from quintet.media.shards.headers import read_header
from quintet.media.shards.index import SUFFIX, IndexBuilder, Sample
from quintet.media.shards.member import Header
from quintet.media.shards.tar import BLOCK, END, MAX_MEMBER, header_of, padding

PIECE = 1 << 20

Describe = Callable[[str], dict[str, Any]]


class Packed(NamedTuple):
    """Result of packing; problems are files with an unreadable header or caption."""

    shards: int
    samples: int
    bytes: int
    problems: list[str]


class _File(NamedTuple):
    path: Path
    name: str
    size: int


def pack(
    folder: Path, paths: Sequence[Path], out: Path, describe: Describe, shard_bytes: int
) -> Packed:
    """Pack the files into shards of about `shard_bytes` in a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadFile(out, "exists and is not empty", "choose a new folder")
    files = [_File(path, relative_name(folder, path), path.stat().st_size) for path in paths]
    shards = list(_cut(files, shard_bytes))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as partial:
        writer = _ShardWriter(partial, describe, _digest(files), len(shards))
        for number, members in enumerate(shards):
            writer.write(number, members)
    return Packed(len(shards), len(files), writer.bytes, writer.problems)


def _cut(files: Sequence[_File], shard_bytes: int) -> Iterator[list[_File]]:
    """Group files into shards of at most `shard_bytes`; a larger file gets its own."""
    shard: list[_File] = []
    size = 0
    for file in files:
        if file.size > MAX_MEMBER:
            raise BadFile(file.path, "is larger than 8 GB, too large for a shard", "split it")
        if shard and size + file.size > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(file)
        size += file.size + BLOCK
    if shard:
        yield shard


def _digest(files: Sequence[_File]) -> str:
    """Identifier of the whole set, recorded in the index of each of its shards."""
    digest = sha256()
    for file in files:
        digest.update(b"%d " % file.size + os.fsencode(file.name) + b"\0")
    return digest.hexdigest()[:16]


class _ShardWriter:
    """Writer of the shards."""

    def __init__(self, folder: Path, describe: Describe, packing: str, count: int) -> None:
        self.folder, self.describe = folder, describe
        self.about = {"packing": packing, "count": count}
        self.samples, self.bytes = 0, 0
        self.problems: list[str] = []

    def write(self, number: int, files: Sequence[_File]) -> None:
        stem, builder = f"shard-{number:06d}", IndexBuilder()
        with open(self.folder / f"{stem}.tar", "wb") as out:
            for file in files:
                builder.add(self._add(out, file))
            out.write(END)
            size = out.tell()
            out.flush()
            os.fsync(out.fileno())
        index = builder.content({**self.about, "number": number, "bytes": size})
        atomic_write(self.folder / f"{stem}{SUFFIX}", index)
        self.bytes += size + len(index)

    def _add(self, out: IO[bytes], file: _File) -> Sample:
        name, row = f"{self.samples:09d}{file.path.suffix.lower()}", self._row(file)
        self.samples += 1
        offset, digest = _write_sample(out, name, file.size, row, lambda: _copy(file, out))
        return Sample(file.name, offset, file.size, digest, self._header(file), row)

    def _row(self, file: _File) -> dict[str, Any]:
        try:
            row = self.describe(file.name)
        except BadFile as bad:
            self.problems.append(str(bad))
            row = {}
        return {**row, "file_name": file.name}

    def _header(self, file: _File) -> Header:
        header = read_header(file.path)
        if header is None:
            self.problems.append(f"{printable(file.path)}: its header cannot be read")
        return header or Header()


class Content(NamedTuple):
    """A sample in memory: the name of what it was made of, its safetensors file and metadata."""

    name: str
    data: bytes
    row: dict[str, Any]


def write_shard(
    folder: Path, number: int, first: int, samples: Iterable[Content], about: dict[str, Any]
) -> None:
    """Write one shard of samples in memory; it is complete once its index is there. `first` is the
    number of its first sample among all."""
    out, builder = BytesIO(), IndexBuilder()
    for key, (name, data, row) in enumerate(samples, first):
        row = {**row, "file_name": name}
        copy = partial(_copy_from, BytesIO(data), len(data), out)
        position = _write_sample(out, f"{key:09d}.safetensors", len(data), row, copy)
        sample = Sample(name, position[0], len(data), position[1], Header(), row)
        builder.add(sample, ".safetensors")
    out.write(END)
    stem = folder / f"shard-{number:06d}"
    atomic_write(stem.with_suffix(".tar"), out.getvalue())
    index = builder.content({**about, "number": number, "bytes": out.tell()})
    atomic_write(stem.with_suffix(SUFFIX), index)


def _write_sample(
    out: IO[bytes], name: str, size: int, row: dict[str, Any], copy: Callable[[], bytes]
) -> tuple[int, bytes]:
    """Write the members of one sample, sorted by name; `copy` writes the file and returns its
    digest. Returns its offset and digest."""
    key, dot, suffix = name.partition(".")
    sidecars = {".json": json.dumps(row, sort_keys=True).encode()}
    if row.get("text"):
        sidecars[".txt"] = str(row["text"]).encode("utf-8", "replace")
    position = (0, b"")
    for ext in sorted([dot + suffix, *sidecars]):
        if ext == dot + suffix:
            out.write(header_of(name, size))
            position = out.tell(), copy()
        else:
            out.write(header_of(f"{key}{ext}", len(sidecars[ext])))
            _copy_from(BytesIO(sidecars[ext]), len(sidecars[ext]), out)
    return position


def _copy(file: _File, out: IO[bytes]) -> bytes:
    """Copy the content of a file and return its digest."""
    try:
        with open(file.path, "rb") as content:
            digest = _copy_from(content, file.size, out)
            if not content.read(1):
                return digest
    except EOFError:
        pass
    raise BadFile(file.path, "changed during packing", "pack the folder again")


def _copy_from(content: IO[bytes], size: int, out: IO[bytes]) -> bytes:
    digest, done = sha256(), 0
    while done < size:
        piece = content.read(min(PIECE, size - done))
        if not piece:
            raise EOFError
        digest.update(piece)
        out.write(piece)
        done += len(piece)
    out.write(padding(size))
    return digest.digest()[:16]

"""Packing a folder into shards: plain tar archives that WebDataset reads, each with an index.

A sample is `000000012.jpg`, `000000012.json` with what is said of it, and `000000012.txt` with its
text. The same folder gives the same bytes. The shards are there in full or not at all.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from quintet.media.errors import BadFile, printable
from quintet.media.folder import relative_name, write_aside
from quintet.media.shard_facts import facts_of
from quintet.media.shard_index import SUFFIX, Builder, Sample
from quintet.media.shard_member import Facts
from quintet.media.shard_tar import BLOCK, END, MAX_MEMBER, header_of, padding

PIECE = 1 << 20

Describe = Callable[[str], dict[str, Any]]


class Packed(NamedTuple):
    """What came of it; problems are files whose header or text cannot be read."""

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
    """Put the files into shards of about so many bytes, in a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadFile(out, "exists and is not empty", "choose a new folder")
    found = [_File(path, relative_name(folder, path), path.stat().st_size) for path in paths]
    shards = list(_cut(found, shard_bytes))
    aside = out.with_name(f".{out.name}.{os.getpid()}.part")
    aside.mkdir(parents=True)
    try:
        work = _Work(aside, describe, _digest(found), len(shards))
        for number, files in enumerate(shards):
            work.shard(number, files)
        aside.replace(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Packed(len(shards), len(found), work.bytes, work.problems)


def _cut(files: Sequence[_File], most: int) -> Iterator[list[_File]]:
    """Shards of at most so many bytes; a file that is larger has one of its own."""
    shard: list[_File] = []
    size = 0
    for file in files:
        if file.size > MAX_MEMBER:
            raise BadFile(file.path, "holds more than 8 GB, too much for a shard", "cut it")
        if shard and size + file.size > most:
            yield shard
            shard, size = [], 0
        shard.append(file)
        size += file.size + BLOCK
    if shard:
        yield shard


def _digest(files: Sequence[_File]) -> str:
    """A name for the whole, by which shards that belong together know each other."""
    whole = sha256()
    for file in files:
        whole.update(b"%d " % file.size + os.fsencode(file.name) + b"\0")
    return whole.hexdigest()[:16]


class _Work:
    """The shards as they are written."""

    def __init__(self, folder: Path, describe: Describe, packing: str, count: int) -> None:
        self.folder, self.describe = folder, describe
        self.about = {"packing": packing, "count": count}
        self.samples, self.bytes = 0, 0
        self.problems: list[str] = []

    def shard(self, number: int, files: Sequence[_File]) -> None:
        stem, builder = f"shard-{number:06d}", Builder()
        with open(self.folder / f"{stem}.tar", "wb") as out:
            for file in files:
                builder.add(self._add(out, file))
            out.write(END)
            size = out.tell()
            out.flush()
            os.fsync(out.fileno())
        index = builder.content({**self.about, "number": number, "bytes": size})
        write_aside(self.folder / f"{stem}{SUFFIX}", index)
        self.bytes += size + len(index)

    def _add(self, out: IO[bytes], file: _File) -> Sample:
        """The members of one sample, in the order of their names."""
        key, suffix = f"{self.samples:09d}", file.path.suffix.lower()
        self.samples += 1
        row = self._row(file)
        said = {".json": json.dumps(row, sort_keys=True).encode()}
        if row.get("text"):
            said[".txt"] = str(row["text"]).encode("utf-8", "replace")
        placed = (0, b"")
        for ext in sorted([suffix, *said]):
            if ext == suffix:
                out.write(header_of(f"{key}{ext}", file.size))
                placed = out.tell(), _copy(file, out)
            else:
                out.write(header_of(f"{key}{ext}", len(said[ext])))
                _copy_from(BytesIO(said[ext]), len(said[ext]), out)
        return Sample(file.name, placed[0], file.size, placed[1], self._facts(file), row)

    def _row(self, file: _File) -> dict[str, Any]:
        try:
            row = self.describe(file.name)
        except BadFile as bad:
            self.problems.append(str(bad))
            row = {}
        return {**row, "file_name": file.name}

    def _facts(self, file: _File) -> Facts:
        found = facts_of(file.path)
        if found is None:
            self.problems.append(f"{printable(file.path)}: its header cannot be read")
        return found or Facts()


def _copy(file: _File, out: IO[bytes]) -> bytes:
    """The content of a file, and its digest."""
    try:
        with open(file.path, "rb") as content:
            digest = _copy_from(content, file.size, out)
            if not content.read(1):
                return digest
    except EOFError:
        pass
    raise BadFile(file.path, "changed while it was packed", "pack the folder again")


def _copy_from(content: IO[bytes], size: int, out: IO[bytes]) -> bytes:
    whole, done = sha256(), 0
    while done < size:
        piece = content.read(min(PIECE, size - done))
        if not piece:
            raise EOFError
        whole.update(piece)
        out.write(piece)
        done += len(piece)
    out.write(padding(size))
    return whole.digest()[:16]

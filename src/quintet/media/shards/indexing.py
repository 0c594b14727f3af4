"""Indexing of shards without an index: any tar in the WebDataset convention.

Consecutive members `KEY.EXT` with the same key are one sample. One of them is the media file,
`.json` and `.txt` hold metadata and caption, and the rest is never opened.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

from quintet.media.errors import printable
from quintet.media.folder import with_text
from quintet.media.shards.headers import read_header
from quintet.media.shards.index import IndexBuilder, Sample, digest_of
from quintet.media.shards.member import Header, Member
from quintet.media.shards.tar import Damage, Entry, Read, entries

MAX_TEXT = 1_000_000
PROBED = 256_000_000
"""Files up to this many bytes are read into memory to parse their header."""
PIECE = 1 << 22
TEXTS = ("txt", "text", "caption", "transcript")
NAMED = 20
"""Problems reported in full; the rest are counted."""


class Problems:
    """Skipped members: their number, and the first of them in full."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, name: str, problem: str) -> None:
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{printable(name)} {problem}")


def build_index(read: Read, size: int, suffixes: Sequence[str]) -> bytes:
    """Index of the samples with these suffixes. Reads the whole archive once."""
    problems, builder, seen = Problems(), IndexBuilder(), set[str]()
    for key, group in _groups(read, size, problems):
        if key in seen:
            problems.add(key, "is the key of two samples; using the first")
            continue
        seen.add(key)
        entry = _media_entry(group, suffixes)
        if entry is not None:
            builder.add(_sample(read, entry, group))
    return builder.content({"bytes": size, "skipped": problems.count, "problems": problems.first})


def _split(name: str) -> tuple[str, str]:
    """Split at the first dot of the file name into key and extension."""
    folder, slash, last = name.rpartition("/")
    stem, _, ext = last.partition(".")
    return f"{folder}{slash}{stem}", ext.lower()


def _groups(read: Read, size: int, problems: Problems) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Consecutive members with the same key, by extension."""
    current, group = "", dict[str, Entry]()
    try:
        for entry in entries(read, size):
            key, ext = _split(entry.name)
            if entry.problem:
                problems.add(entry.name, entry.problem)
                continue
            if key != current and group:
                yield current, group
                group = {}
            current = key
            if ext in group:
                problems.add(entry.name, "occurs twice; using the first")
            elif ext:
                group[ext] = entry
    except Damage as damage:
        problems.add("the archive", f"{damage}; the rest is not read")
        return  # the last sample may be incomplete
    if group:
        yield current, group


def _media_entry(group: dict[str, Entry], suffixes: Sequence[str]) -> Entry | None:
    """The media file of a sample: `a.jpg` rather than `a.mask.jpg`."""
    plain = (entry for ext, entry in group.items() if f".{ext}" in suffixes)
    other = (entry for ext, entry in group.items() if f".{ext.rpartition('.')[2]}" in suffixes)
    return next(plain, None) or next(other, None)


def _sample(read: Read, entry: Entry, group: dict[str, Entry]) -> Sample:
    row = _row(read, group)
    name, file_name = entry.name, row.get("file_name")
    if isinstance(file_name, str) and _is_name_for(file_name, entry.name):
        name = file_name
    if entry.length <= PROBED:
        content = read(entry.offset, entry.length)
        member = Member.of(entry.name, entry.length, lambda: content, Header())
        header, digest = read_header(member) or Header(), digest_of(content)
    else:
        header, digest = Header(), _digest(read, entry)
    return Sample(name, entry.offset, entry.length, digest, header, row)


def _is_name_for(file_name: str, name: str) -> bool:
    """Whether `file_name` of the metadata is a safe name with the same suffix."""
    path = PurePosixPath(file_name)
    ends = path.suffix.lower() == PurePosixPath(name).suffix.lower()
    return ends and not path.is_absolute() and ".." not in path.parts and "\\" not in file_name


def _digest(read: Read, entry: Entry) -> bytes:
    digest = sha256()
    for begin in range(0, entry.length, PIECE):
        digest.update(read(entry.offset + begin, min(PIECE, entry.length - begin)))
    return digest.digest()[:16]


def _row(read: Read, group: dict[str, Entry]) -> dict[str, Any]:
    """Metadata from the sample's JSON, with the caption of its text file if it has none."""
    row = _json(_read_text(read, group.get("json")))
    if not row.get("text"):
        texts = (_read_text(read, group.get(ext)) for ext in TEXTS)
        text = next((text for text in texts if text and text.strip()), None)
        row |= {"text": text} if text else {}
    return row


def _read_text(read: Read, entry: Entry | None) -> str | None:
    if entry is None or entry.length > MAX_TEXT:
        return None
    try:
        return read(entry.offset, entry.length).decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _json(text: str | None) -> dict[str, Any]:
    try:
        row = json.loads(text or "{}")
        return with_text(row) if isinstance(row, dict) else {}
    except (ValueError, RecursionError):
        return {}

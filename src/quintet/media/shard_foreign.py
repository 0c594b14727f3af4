"""Indexing shards that came without an index: any tar in the convention of WebDataset.

Members `KEY.EXT` that follow each other and share a key are one sample. One member of it is the
file that the room reads, `.json` and `.txt` are what is said of it, and the rest is never opened.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

from quintet.media.errors import printable
from quintet.media.folder import with_text
from quintet.media.shard_facts import facts_of
from quintet.media.shard_index import Builder, Sample, digest_of
from quintet.media.shard_member import Facts, Member
from quintet.media.shard_tar import Damage, Entry, Read, entries

MAX_TEXT = 1_000_000
PROBED = 256_000_000
"""Bytes up to which a file is taken into memory to read its header."""
PIECE = 1 << 22
TEXTS = ("txt", "text", "caption", "transcript")
NAMED = 20
"""Problems that are remembered in full; the rest are counted."""


class Notes:
    """What was passed over: how much of it, and the first in full."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, name: str, problem: str) -> None:
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{printable(name)} {problem}")


def index_of(read: Read, size: int, suffixes: Sequence[str]) -> bytes:
    """The index of an archive, for rooms that read these suffixes. All of it is read once."""
    notes, builder, seen = Notes(), Builder(), set[str]()
    for key, group in _groups(read, size, notes):
        if key in seen:
            notes.add(key, "is the key of two samples; the first counts")
            continue
        seen.add(key)
        chosen = _chosen(group, suffixes)
        if chosen is not None:
            builder.add(_sample(read, chosen, group))
    return builder.content({"bytes": size, "skipped": notes.count, "problems": notes.first})


def _split(name: str) -> tuple[str, str]:
    """Key and extension: the name up to the first dot of its last part, and what follows."""
    folder, slash, last = name.rpartition("/")
    stem, _, ext = last.partition(".")
    return f"{folder}{slash}{stem}", ext.lower()


def _groups(read: Read, size: int, notes: Notes) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Members that follow each other and share a key, by their extensions."""
    current, group = "", dict[str, Entry]()
    try:
        for entry in entries(read, size):
            key, ext = _split(entry.name)
            if entry.problem:
                notes.add(entry.name, entry.problem)
                continue
            if key != current and group:
                yield current, group
                group = {}
            current = key
            if ext in group:
                notes.add(entry.name, "is there twice; the first counts")
            elif ext:
                group[ext] = entry
    except Damage as damage:
        notes.add("the archive", f"{damage}; what follows is not read")
        return  # what of the last sample is here may not be all of it
    if group:
        yield current, group


def _chosen(group: dict[str, Entry], suffixes: Sequence[str]) -> Entry | None:
    """The one that the room reads: of `a.jpg` and `a.mask.jpg` the plain one."""
    plain = (entry for ext, entry in group.items() if f".{ext}" in suffixes)
    other = (entry for ext, entry in group.items() if f".{ext.rpartition('.')[2]}" in suffixes)
    return next(plain, None) or next(other, None)


def _sample(read: Read, entry: Entry, group: dict[str, Entry]) -> Sample:
    row = _row(read, group)
    name, given = entry.name, row.get("file_name")
    if isinstance(given, str) and _is_name_for(given, entry.name):
        name = given
    if entry.length <= PROBED:
        content = read(entry.offset, entry.length)
        member = Member.of(entry.name, entry.length, lambda: content, Facts())
        facts, digest = facts_of(member) or Facts(), digest_of(content)
    else:
        facts, digest = Facts(), _digest(read, entry)
    return Sample(name, entry.offset, entry.length, digest, facts, row)


def _is_name_for(given: str, name: str) -> bool:
    """Whether what the metadata calls the file can stand for it."""
    path = PurePosixPath(given)
    ends = path.suffix.lower() == PurePosixPath(name).suffix.lower()
    return ends and not path.is_absolute() and ".." not in path.parts and "\\" not in given


def _digest(read: Read, entry: Entry) -> bytes:
    whole = sha256()
    for begin in range(0, entry.length, PIECE):
        whole.update(read(entry.offset + begin, min(PIECE, entry.length - begin)))
    return whole.digest()[:16]


def _row(read: Read, group: dict[str, Entry]) -> dict[str, Any]:
    """What the sample's JSON says, with the text of its text file where it names none."""
    row = _json(_small(read, group.get("json")))
    if not row.get("text"):
        found = (_small(read, group.get(ext)) for ext in TEXTS)
        text = next((text for text in found if text and text.strip()), None)
        row |= {"text": text} if text else {}
    return row


def _small(read: Read, entry: Entry | None) -> str | None:
    if entry is None or entry.length > MAX_TEXT:
        return None
    try:
        return read(entry.offset, entry.length).decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
        return with_text(found) if isinstance(found, dict) else {}
    except (ValueError, RecursionError):
        return {}

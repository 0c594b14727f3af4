"""Tar archives: bounded reading, header by header, and deterministic writing.

tarfile does not read them, because a foreign archive must not control memory use: extension headers
are capped, and members other than regular files are recognised and skipped.
"""

import tarfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
MAX_EXTENSION = 65_536
"""Maximum bytes of an extension header (long names, pax records)."""
MAX_MEMBER = 8**11 - 1
"""Maximum bytes of a member in a plain ustar header."""

Read = Callable[[int, int], bytes]
"""Read bytes of the archive: offset, count."""

_PLAIN = (b"0", b"\0", b"7")
_KINDS = {
    b"1": "a link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a folder",
    b"6": "a pipe",
    b"S": "a sparse file",
}


class Damage(ValueError):
    """The archive is damaged from here on."""


class Entry(NamedTuple):
    """A member: name, offset and length of its content. A member with a `problem` is skipped."""

    name: str
    offset: int
    length: int
    problem: str = ""


def entries(read: Read, size: int) -> Iterator[Entry]:
    """Yield every member except folders of an archive of `size` bytes. Raises Damage."""
    at, extended = 0, dict[str, str]()
    while at + BLOCK <= size:
        header = read(at, BLOCK)
        if not header.strip(b"\0"):
            return
        kind = _checked(header, at)
        about = kind in b"xgLK"  # extension headers of pax and GNU
        length = _length(header, None if about else extended.get("size"), at)
        begin, at = at + BLOCK, at + BLOCK + -(-length // BLOCK) * BLOCK
        if begin + length > size:
            raise Damage(f"ends inside the member at byte {begin - BLOCK:,}")
        if about:
            if length > MAX_EXTENSION:
                raise Damage(f"has an extension header of {length:,} bytes at {begin - BLOCK:,}")
            if kind != b"g":
                extended |= _extension(kind, read(begin, length), begin)
            continue
        name = extended.get("path") or _name(header)
        problem = _problem(kind, name, extended)
        extended = {}
        if kind != b"5":
            yield Entry(name, begin, length, problem)
    if at < size:
        raise Damage(f"ends inside a header at byte {at:,}")


def _checked(header: bytes, at: int) -> bytes:
    """Kind of the member, after a check of the header's checksum."""
    try:
        stated = int(header[148:156].strip(b" \0"), 8)
    except ValueError:
        stated = -1
    if len(header) < BLOCK or sum(header[:148]) + 256 + sum(header[156:]) != stated:
        raise Damage(f"has no valid header at byte {at:,}")
    return header[156:157]


def _length(header: bytes, extended: str | None, at: int) -> int:
    field = header[124:136]
    try:
        if extended is not None:
            length = int(extended)
        elif field[0] & 0x80:  # GNU: binary, for sizes that octal digits cannot hold
            length = int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
        else:
            length = int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        length = -1
    if not 0 <= length < 1 << 62:
        raise Damage(f"has a member of invalid size at byte {at:,}")
    return length


def _name(header: bytes) -> str:
    name, prefix = (part.split(b"\0")[0] for part in (header[:100], header[345:500]))
    joined = prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name
    return joined.decode("utf-8", "surrogateescape")


def _extension(kind: bytes, content: bytes, at: int) -> dict[str, str]:
    """Parse an extension header: a long name or pax records."""
    if kind in b"LK":
        text = content.split(b"\0")[0].decode("utf-8", "surrogateescape")
        return {"path": text} if kind == b"L" else {}
    records: dict[str, str] = {}
    while content.strip(b"\0"):
        digits, _, _ = content[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record, content = content[:length], content[length:]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) < length:
            raise Damage(f"has a damaged extension header at byte {at - BLOCK:,}")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
    return records


def _problem(kind: bytes, name: str, extended: dict[str, str]) -> str:
    if any(key.startswith("GNU.sparse") for key in extended):
        return "is a sparse file"
    if kind not in _PLAIN:
        return f"is {_KINDS.get(kind, f'of the unknown kind {kind!r}')}"
    if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name or not name:
        return "has a name outside the archive"
    return ""


# -- writing --------------------------------------------------------------------------------


def header_of(name: str, length: int) -> bytes:
    """Header of a regular file, without time and owner."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = length, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(length: int) -> bytes:
    """Padding of a member's content to whole blocks."""
    return b"\0" * (-length % BLOCK)


END = b"\0" * (2 * BLOCK)
"""End-of-archive marker."""

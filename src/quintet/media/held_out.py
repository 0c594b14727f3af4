"""Which samples of one data set are in another as well: by path, or by content under another name.

As little as possible is read: of files of equal size the middle, and where that is equal too, all.
Shards have digests in their index.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile, printable
from quintet.media.ranges import say

Keys = npt.NDArray[np.uint64]
Read = Callable[[npt.NDArray[np.int64]], Keys]
"""Keys of the samples with these numbers; 0 for one that cannot be read, which equals none."""
BLOCK = 4096
"""Bytes of the middle of a file."""
MANY = 20_000
"""Files whose comparison takes so long that it is announced."""
_PART = re.compile(r"#\d+\.\d{3}-\d+\.\d{3}$")
"""End of the name of a segment of a recording."""


class Contents(NamedTuple):
    """What tells samples apart, from cheap to expensive; None for what is not known."""

    number: int
    places: Sequence[str] = ()
    """Real paths."""
    sizes: Read | None = None
    middles: Read | None = None
    digests: Read | None = None


def shared(these: Contents, those: Contents) -> npt.NDArray[np.bool_]:
    """Mask of the samples of `these` that are among `those`."""
    places, mask = set(those.places), np.zeros(these.number, np.bool_)
    mask[[number for number, place in enumerate(these.places) if place in places]] = True
    mine, theirs = np.flatnonzero(~mask), np.arange(those.number)
    for kind in ("sizes", "middles", "digests"):
        read, read_theirs = getattr(these, kind), getattr(those, kind)
        if read and read_theirs:
            keys, their_keys = read(mine), read_theirs(theirs)
            mine = mine[np.isin(keys, their_keys) & (keys != 0)]
            theirs = theirs[np.isin(their_keys, keys)]
    if these.digests and those.digests:
        mask[mine] = True
    return mask


def outside(folder: Path, names: list[str], held_out: str, what: str) -> list[str]:
    """Names of the files of a folder that are not below the folder of validation data."""
    root, below = os.path.realpath(folder), os.path.join(os.path.realpath(held_out), "")
    apart = [name for name in names if not os.path.join(root, name).startswith(below)]
    _report(folder, len(names) - len(apart), len(names), what, f"are in {held_out}", held_out)
    return apart


def report_copies(
    folder: Path, copies: npt.NDArray[np.bool_], what: str, held_out: str | None
) -> None:
    """Say how many training samples are left out as copies, or refuse where nothing is left."""
    origin = f"files in {held_out}" if held_out else "held-out ones"
    _report(folder, int(copies.sum()), len(copies), what, f"are copies of {origin}", held_out)


def _report(
    folder: Path, count: int, total: int, what: str, reason: str, held_out: str | None
) -> None:
    if count == total:
        remedy = "give --valid another folder, or drop it" if held_out else f"add other {what}"
        raise BadFile(
            folder,
            f"no training data is left: all of its {total:,} {what} {reason}",
            f"{remedy}; exclude_held_out = False keeps them in training",
        )
    if count:
        which = f"{count:,} of {total:,} {what} {printable(reason)}"
        say(f"{printable(folder)}: held out from training: {which}")


def contents_of(source: Any) -> Contents | None:
    """Those of a source, or of the one that it is made of; None for built-in and Python data."""
    while not hasattr(source, "contents") and hasattr(source, "source"):
        source = source.source
    return source.contents() if hasattr(source, "contents") else None


def file_contents(
    folder: Path, names: Sequence[str], sizes: Mapping[str, int], whole: bool = False
) -> Contents:
    """Files of a folder, or segments of them, whose names end with their times; `whole` takes the
    file of a segment."""
    root = os.path.realpath(folder)
    files = [_PART.sub("", name) for name in names]
    names = files if whole else names
    counts = np.array([sizes.get(file, 0) for file in files], np.uint64)

    def each(read: Callable[[Path], bytes], numbers: list[int]) -> Keys:
        chosen = [files[number] for number in numbers]
        distinct = list(dict.fromkeys(chosen))
        if len(distinct) > MANY:
            say(f"{printable(folder)}: comparing {len(distinct):,} files with validation data")
        with ThreadPoolExecutor(16) as pool:
            paths = (Path(root, file) for file in distinct)
            digests = dict(zip(distinct, pool.map(read, paths)))
        return keys_of((digests[files[number]], names[number]) for number in numbers)

    return Contents(
        len(names),
        [os.path.join(root, name) for name in names],
        lambda numbers: counts[numbers],
        lambda numbers: each(_middle, numbers.tolist()),
        lambda numbers: each(content_digest, numbers.tolist()),
    )


def path_contents(paths: Sequence[Path]) -> Contents:
    """Files anywhere."""
    names = [os.path.realpath(path).lstrip(os.sep) for path in paths]
    sizes = {name: path.stat().st_size for name, path in zip(names, paths)}
    return file_contents(Path(os.sep), names, sizes)


def recorded_contents(root: str, files: Mapping[str, str]) -> Contents | None:
    """Those of data.json of a run, `size digest` by name; None if it has no digests."""
    words = [value.split() for value in files.values()]
    if not words or any(len(each) < 2 or not each[0].isdecimal() for each in words):
        return None
    names, root = list(files), os.path.realpath(root)
    sizes = np.array([int(size) for size, *_ in words], np.uint64)
    digests = keys_of((_from_hex(each[1]), name) for each, name in zip(words, names))
    places = [os.path.join(root, name) for name in names]
    return Contents(len(names), places, lambda n: sizes[n], None, lambda n: digests[n])


def keys_of(samples: Iterable[tuple[bytes, str]]) -> Keys:
    """Of digests (b"" for what cannot be read) and names: segments of a file differ."""
    keys: list[int] = []
    for digest, name in samples:
        part = _PART.search(name)
        digest = sha256(digest[:8] + part[0].encode()).digest() if part and digest else digest
        keys.append(int.from_bytes(digest[:8], "little"))
    return np.array(keys, np.uint64)


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""  # "unreadable"


def content_digest(path: Path) -> bytes:
    """SHA-256, as in the index of a shard; b"" for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return file_digest(file, sha256).digest()
    except (OSError, BadFile):
        return b""


def _middle(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, (os.fstat(file.fileno()).st_size - BLOCK) // 2))
            return sha256(file.read(BLOCK)).digest()
    except OSError:
        return b""

"""Which shards are meant: a folder of them, one, a pattern with braces, or any address of these."""

import os
import re
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from quintet.media.errors import BadFile
from quintet.media.folder import files
from quintet.media.shard_index import SUFFIX
from quintet.media.shard_store import Place, Store, store_of

TAR = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
MOST = 1_000_000
"""Shards that one pattern may name."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_WINDOW = re.compile(r"#window=(\d+)$")


class Shard(NamedTuple):
    """A shard, and its index where it came with one."""

    tar: Place
    listed: Place | None


def without_window(data: str) -> tuple[str, int]:
    """The data's place, and the window that `PLACE#window=N` asks for, or 0."""
    found = _WINDOW.search(data)
    return (data[: found.start()], int(found[1])) if found else (data, 0)


def are_shards(place: str, suffixes: Sequence[str]) -> bool:
    """Whether this names shards. A folder of files stays one though an archive lies in it."""
    if "://" in place or place.endswith((TAR, *PACKED)):
        return True
    try:
        names = set(os.listdir(place))
    except OSError:
        return False
    stems = {name[: -len(TAR)] for name in names if name.endswith(TAR) and name[0] != "."}
    indexed = {name[: -len(SUFFIX)] for name in names if name.endswith(SUFFIX)}
    return bool(stems & indexed) or (bool(stems | indexed) and not files(place, suffixes))


def expanded(pattern: str) -> list[str]:
    """`a-{000..099}.tar` and `{a,b}.tar` as the names that they stand for."""
    between = _BRACES.split(pattern)  # what is inside braces has every odd place
    words = [_words(part, pattern) if i % 2 else [part] for i, part in enumerate(between)]
    if prod(map(len, words)) > MOST:
        raise BadFile(pattern, f"names more than {MOST:,} shards", "name a folder")
    return ["".join(chosen) for chosen in product(*words)]


def _words(inside: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = (int(number) for number in numbers.groups())
    if last < first or last - first >= MOST:
        reason = f"has the range {inside}"
        raise BadFile(pattern, reason, f"count up, and not past {MOST:,} shards")
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def shards_at(place: str) -> tuple[Store, list[Shard]]:
    """All that are meant, in the order of their names. Each that is named must be there."""
    store = store_of(place)
    if place.endswith(PACKED):
        reason = "is compressed, and cannot be read at any place"
        raise BadFile(place, reason, "unpack it to a plain .tar")
    if place.endswith(TAR):
        return store, [_named(store, name) for name in expanded(place)]
    here = {each.name: each for each in store.files(place)}
    tars = [each for name, each in here.items() if name.endswith(TAR) and name[0] != "."]
    lost = [
        name
        for name in here
        if name.endswith(SUFFIX) and name[: -len(SUFFIX)] + TAR not in here and name[0] != "."
    ]
    if lost:
        missing = lost[0][: -len(SUFFIX)] + TAR
        raise BadFile(place, f"{missing} is missing, though its index is there", "copy it again")
    if not tars:
        raise BadFile(place, f"holds no shards ({TAR})", "check what is there")
    found = [Shard(tar, here.get(tar.name[: -len(TAR)] + SUFFIX)) for tar in tars]
    return store, found


def _named(store: Store, name: str) -> Shard:
    tar = store.find(name)
    if tar is None:
        raise BadFile(name, "is not there", "check the name, or leave it out of the pattern")
    return Shard(tar, store.find(name[: -len(TAR)] + SUFFIX))

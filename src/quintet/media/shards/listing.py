"""Listing of shards: a folder, one archive or a brace pattern, local or as URL."""

import os
import re
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from quintet.media.errors import BadFile
from quintet.media.folder import files
from quintet.media.shards.index import SUFFIX
from quintet.media.shards.store import Store, StoredFile, store_of

TAR = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
MAX_SHARDS = 1_000_000
"""Maximum number of shards in a pattern."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_WINDOW = re.compile(r"#window=(\d+)$")


class Shard(NamedTuple):
    """A shard, and its index if there is one beside it."""

    tar: StoredFile
    index_file: StoredFile | None


def split_window(data: str) -> tuple[str, int]:
    """Split `LOCATION#window=N` into location and window (default 0)."""
    match = _WINDOW.search(data)
    return (data[: match.start()], int(match[1])) if match else (data, 0)


def is_sharded(location: str, suffixes: Sequence[str]) -> bool:
    """Whether this is sharded data. A folder of files may contain an archive without index."""
    if "://" in location or location.endswith((TAR, *PACKED)):
        return True
    try:
        names = set(os.listdir(location))
    except OSError:
        return False
    stems = {name[: -len(TAR)] for name in names if name.endswith(TAR) and name[0] != "."}
    indexed = {name[: -len(SUFFIX)] for name in names if name.endswith(SUFFIX)}
    return bool(stems & indexed) or (bool(stems | indexed) and not files(location, suffixes))


def expand_braces(pattern: str) -> list[str]:
    """Expand `a-{000..099}.tar` and `{a,b}.tar` into names."""
    pieces = _BRACES.split(pattern)  # odd elements were inside braces
    choices = [_choices(part, pattern) if i % 2 else [part] for i, part in enumerate(pieces)]
    if prod(map(len, choices)) > MAX_SHARDS:
        raise BadFile(pattern, f"names more than {MAX_SHARDS:,} shards", "name a folder")
    return ["".join(choice) for choice in product(*choices)]


def _choices(content: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(content)
    if numbers is None:
        return content.split(",")
    first, last = (int(number) for number in numbers.groups())
    if last < first or last - first >= MAX_SHARDS:
        reason = f"has the range {content}"
        raise BadFile(pattern, reason, f"use an ascending range of at most {MAX_SHARDS:,} shards")
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def list_shards(location: str) -> tuple[Store, list[Shard]]:
    """All shards at a location, sorted by name. Every name in a pattern must exist."""
    store = store_of(location)
    if location.endswith(PACKED):
        reason = "is compressed, which rules out random access"
        raise BadFile(location, reason, "decompress it to a plain .tar")
    if location.endswith(TAR):
        return store, [_required(store, name) for name in expand_braces(location)]
    present = {each.name: each for each in store.files(location)}
    tars = [each for name, each in present.items() if name.endswith(TAR) and name[0] != "."]
    orphans = [
        name
        for name in present
        if name.endswith(SUFFIX) and name[: -len(SUFFIX)] + TAR not in present and name[0] != "."
    ]
    if orphans:
        missing = orphans[0][: -len(SUFFIX)] + TAR
        raise BadFile(location, f"{missing} is missing, though its index exists", "copy it again")
    if not tars:
        raise BadFile(location, f"holds no shards ({TAR})", "check the location")
    shards = [Shard(tar, present.get(tar.name[: -len(TAR)] + SUFFIX)) for tar in tars]
    return store, shards


def _required(store: Store, name: str) -> Shard:
    tar = store.find(name)
    if tar is None:
        raise BadFile(name, "does not exist", "check the name, or drop it from the pattern")
    return Shard(tar, store.find(name[: -len(TAR)] + SUFFIX))

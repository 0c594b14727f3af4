"""The files of a folder within the range of the settings, from their headers.

The result is cached in the user's cache folder: a file is examined again only if its size, its
modification time or a setting differs. Unreadable files stay in, and are reported when read.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quintet.media.errors import BadFile, OutOfRange, printable
from quintet.media.folder import Listing
from quintet.media.shards.cache import Cache

T = TypeVar("T")
VERSION = 2
PATIENCE = 2.0
"""Seconds before the first progress line."""
Examine = Callable[[Path], float]
"""Checks the header of a file, and returns its extent (such as seconds), or 0."""


class Outside(NamedTuple):
    """Why a file is left out: the limit with its setting, the remedy, and the file's value."""

    limit: str
    remedy: str
    value: float | None

    @classmethod
    def of(cls, error: OutOfRange) -> "Outside":
        return cls(error.limit, error.remedy, error.value)


class Ranges(NamedTuple):
    """Extents of the files of a folder, and the files to leave out."""

    extents: Mapping[str, float]
    outside: Mapping[str, Outside]


def examine_headers(
    folder: Path, listed: Listing, settings: str, examine: Examine, what: str
) -> Ranges:
    """Examine each file, or take the result from the cache. `settings` identifies the check."""
    cache = Cache("folders")
    key = f"{VERSION}\n{os.path.realpath(folder)}\n{settings}"
    files = [listed.names, listed.sizes, listed.times]
    # One process examines; the other ranks wait for its result.
    with cache.claim(key):
        known = _load(cache, key)
        if known["files"] != files:
            same = set(zip(*known["files"])).intersection(zip(*files))
            old = {name for name, _, _ in same}
            for kind in ("extents", "outside"):
                known[kind] = {name: row for name, row in known[kind].items() if name in old}
            new = [name for name in listed.names if name not in old]
            for name in _with_progress(new, what):
                extent, outside = _examined(folder / name, examine)
                if extent:
                    known["extents"][name] = extent
                if outside:
                    known["outside"][name] = outside
            known["files"] = files
            cache.put(key, json.dumps(known).encode("ascii"))
    outside = {name: Outside(*row) for name, row in known["outside"].items()}
    return Ranges(known["extents"], outside)


def _load(cache: Cache, key: str) -> dict[str, Any]:
    """The cached result: three columns of `files`, and results by name, which most files lack."""
    try:
        path = cache.find(key)
        known = json.loads(path.read_bytes()) if path else None
        if known and {*known} == {"files", "extents", "outside"} and len(known["files"]) == 3:
            return known
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return {"files": [[], [], []], "extents": {}, "outside": {}}


def _examined(path: Path, examine: Examine) -> tuple[float, Outside | None]:
    """Extent (0 if it cannot be read), and why the file is left out."""
    try:
        return examine(path), None
    except OutOfRange as error:
        return 0.0, Outside.of(error)
    except (OSError, ValueError, EOFError, MemoryError):
        return 0.0, None


# -- lines ----------------------------------------------------------------------------------


def summary(outside: Iterable[Outside], total: int, what: str) -> Iterator[str]:
    """One line per limit, the most frequent first, and a hint if most of the data is lost."""
    groups: dict[tuple[str, str], list[float | None]] = {}
    for limit, remedy, value in outside:
        groups.setdefault((limit, remedy), []).append(value)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for (limit, remedy), values in ordered:
        yield f"{len(values):,} of {total:,} {what} left out: {limit}{_span(values)}; {remedy}"
    left_out = sum(map(len, groups.values()))
    if 2 * left_out > total:
        yield (
            f"only {total - left_out:,} of {total:,} {what} are left: the settings do not fit this "
            f"data; begin with the limit above that excludes {len(ordered[0][1]):,}"
        )


def _span(values: Sequence[float | None]) -> str:
    known = sorted({value for value in values if value is not None})
    return f" ({' to '.join(map(_short, known[:: max(1, len(known) - 1)]))})" if known else ""


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def within(
    folder: Path, names: Sequence[str], ranges: Mapping[str, Outside], what: str
) -> list[str]:
    """The names that are not left out, with a line on stderr for each reason."""
    remaining = [name for name in names if name not in ranges]
    if len(remaining) == len(names):
        return remaining
    lines = list(summary((ranges[name] for name in names if name in ranges), len(names), what))
    if not remaining:
        reason = f"none of its {len(names):,} {what} can be used: {'. '.join(lines[:-1])}"
        raise BadFile(folder, reason)
    for line in lines:
        say(f"{printable(folder)}: {line}")
    return remaining


_written: set[str] = set()


def say(line: str) -> None:
    """Write a line to stderr, once per process, and on one process of a run."""
    if line in _written or os.environ.get("RANK", "0") != "0":
        return
    _written.add(line)
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _with_progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Iterate; if it takes long, print a line, or a counter on a terminal."""
    begin = shown = time.monotonic()
    count = f"{len(items):,} {what}"
    live = sys.stderr.isatty() and os.environ.get("RANK", "0") == "0"
    for number, item in enumerate(items):
        now = time.monotonic() if number % 64 == 0 else shown
        if now - begin > PATIENCE and now - shown > 0.5:
            if live:
                sys.stderr.write(f"\rexamining {number:,} of {count} ")
                sys.stderr.flush()
            else:
                say(f"examining the headers of {count}; the result is cached")
            shown = now
        yield item
    if live and shown > begin:
        sys.stderr.write("\r" + " " * (len(count) + 30) + "\r")

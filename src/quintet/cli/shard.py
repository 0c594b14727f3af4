"""`quintet shard`."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import tyro

from quintet import rooms
from quintet.cli.words import parse
from quintet.engine.errors import RunError

SHOWN = 10
"""Problems that are printed in full."""


@dataclasses.dataclass(kw_only=True)
class Shard:
    """Pack a folder of media and what is said of them into shards, to train from like a folder."""

    folder: tyro.conf.Positional[Path]
    """The folder of data."""
    out: tyro.conf.Positional[Path]
    """A new folder for the shards."""
    room: str | None = None
    """The room that is to read them, for example image; without it, the one that reads most."""
    shard_mb: int = 256
    """Megabytes of a shard, about."""


def shard(given: list[str]) -> None:
    from quintet.media.folder import files, read_metadata, require_folder
    from quintet.media.shard_pack import pack

    asked = parse(Shard, given, "shard")
    if asked.shard_mb < 1:
        raise RunError(f"--shard-mb is {asked.shard_mb}; give 1 or more")
    folder = require_folder(asked.folder)
    room = asked.room or chosen_room(folder)
    if room not in rooms.rooms():
        raise RunError(f"there is no room '{room}'; there are {', '.join(rooms.rooms())}")
    data = importlib.import_module(f"quintet.{room}.data")
    suffixes, what = folder_class(data).suffixes, folder_class(data).what
    found = files(folder, suffixes)
    if not found:
        raise RunError(f"{folder} holds no {what} ({', '.join(suffixes)})")
    names = [path.relative_to(folder).as_posix() for path in found]
    if hasattr(data, "described"):
        describe = data.described(folder, names)
    else:
        rows = read_metadata(folder)
        describe = lambda name: rows.get(name, {})
    done = pack(folder, found, asked.out, describe, asked.shard_mb * 1_000_000)
    for problem in done.problems[:SHOWN]:
        print(problem)
    if done.problems:
        print(f"{len(done.problems)} problems; the files are packed as they are, see doctor {room}")
    print(
        f"{asked.out}: {done.samples} {what} in {done.shards} shards, {done.bytes / 1e6:.1f} MB.\n"
        f"Train from them as from a folder: quintet train {room}/… {asked.out}"
    )


def folder_class(data: Any) -> Any:
    """What reads a folder in the room: how its files end, and what they are called."""
    from quintet.media.splits import InFolder

    found = (each for each in vars(data).values() if isinstance(each, type))
    return next(each for each in found if issubclass(each, InFolder) and each is not InFolder)


def chosen_room(folder: Path) -> str:
    """The one that reads most of the files and little else."""
    from quintet.media.folder import files

    counts: dict[str, tuple[int, int]] = {}
    for room in rooms.rooms():
        suffixes = folder_class(importlib.import_module(f"quintet.{room}.data")).suffixes
        counts[room] = (len(files(folder, suffixes)), -len(suffixes))
    best = [room for room, count in counts.items() if count == max(counts.values())]
    if len(best) > 1:
        raise RunError(f"{folder} may be for {' or '.join(best)}; give --room")
    return best[0]

"""`quintet pack`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

from quintet import rooms
from quintet.cli.common import parse
from quintet.engine.errors import RunError
from quintet.suggest import command

SHOWN = 10
"""Problems printed in full."""


@dataclasses.dataclass(kw_only=True)
class Pack:
    """Pack a folder of media files and metadata into shards for training."""

    folder: tyro.conf.Positional[Path]
    """Data folder."""
    out: tyro.conf.Positional[Path]
    """New folder for the shards."""
    room: str | None = None
    """Room that will read them, e.g. image; by default the one that reads most of the files."""
    shard_mb: int = 256
    """Approximate size of a shard in megabytes."""


def pack_folder(argv: list[str]) -> None:
    from quintet.media.folder import files, read_metadata, require_folder
    from quintet.media.shards.pack import pack

    args = parse(Pack, argv, "pack")
    if args.shard_mb < 1:
        raise RunError(f"--shard-mb is {args.shard_mb}; give 1 or more")
    folder = require_folder(args.folder)
    room = args.room or guess_room(folder)
    reader = rooms.room_named(room).data.Folder
    suffixes, what = reader.suffixes, reader.what
    paths = files(folder, suffixes)
    if not paths:
        raise RunError(f"{folder} holds no {what} ({', '.join(suffixes)})")
    names = [path.relative_to(folder).as_posix() for path in paths]
    if reader.described is not None:
        describe = whole(reader.described(folder, names))
    else:
        rows = read_metadata(folder)
        describe = lambda name: rows.get(name, {})
    result = pack(folder, paths, args.out, describe, args.shard_mb * 1_000_000)
    for problem in result.problems[:SHOWN]:
        print(problem)
    if result.problems:
        doctor = command("doctor", room, folder)
        print(f"{len(result.problems)} problems; the files are packed as they are: {doctor}")
    recipe = f"{room}/{next(iter(rooms.Room(room).recipes))}"
    train = command("train", recipe, args.out)
    print(
        f"{args.out}: {result.samples} {what} in {result.shards} shards, "
        f"{result.bytes / 1e6:.1f} MB.\n"
        f"Train from them as from a folder: {train}"
    )


def whole(describe: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Refuse recordings that a table cuts into segments: a shard holds whole files."""

    def checked(name: str) -> dict[str, Any]:
        row = describe(name)
        if "segments" in row:
            raise RunError(f"{name} is cut into segments by its table; pack the segments as files")
        return row

    return checked


def guess_room(folder: Path) -> str:
    """The room that reads most of the files; among equals, the one with the fewest suffixes."""
    from quintet.media.folder import files

    counts: dict[str, tuple[int, int]] = {}
    for room in rooms.rooms():
        suffixes = rooms.Room(room).data.Folder.suffixes
        counts[room] = (len(files(folder, suffixes)), -len(suffixes))
    best = [room for room, count in counts.items() if count == max(counts.values())]
    if len(best) > 1:
        raise RunError(f"{folder} may be for {' or '.join(best)}; give --room")
    return best[0]

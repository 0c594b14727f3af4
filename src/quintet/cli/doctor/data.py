"""`quintet doctor ROOM DATA`: report on a data folder, file by file."""

import dataclasses
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quintet import rooms
from quintet.engine.errors import RunError
from quintet.media.errors import BadFile, printable

SHOWN = 5
"""Duplicates listed by name."""


def about_folder(room: str, folder: Path) -> None:
    from quintet.cli.doctor.survey import Duplicates, histogram
    from quintet.media.folder import files, relative_name

    data = rooms.room_named(room).data
    kind, config = data.Folder, data.Folder.Config()
    total = len(files(folder, kind.suffixes))
    names: list[str] = []
    sizes, copies, bad = array("d"), Duplicates(), 0
    for path, problem in shown(data.check(folder), total):
        names.append(relative_name(folder, path))
        copies.add(path)
        if problem:
            bad += 1
            print(problem)
        else:
            sizes.append(extent(path))
    print(f"{len(names)} files, {len(names) - bad} sound, {bad} that training would skip")
    if bad == len(names):
        raise RunError(f"nothing in {folder} can be used")
    print("\n".join([f"{measure(kind)}:", *histogram(sizes)]))
    said = captioned(kind, config, folder, names)
    print(about_captions(names, said, bool(kind.lacking)))
    usable = [name for name in names if name in said] if kind.lacking else names
    held = about_split(usable, config)
    print(held.sentence)
    for sentence in about_copies(folder, copies.groups, held.valid):
        print(sentence)


def shown(checked: Iterable[Any], total: int) -> Iterator[Any]:
    """Iterate with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    idle = not console.is_terminal
    yield from track(checked, "reading", total, console=console, transient=True, disable=idle)


# -- sizes ----------------------------------------------------------------------------------


def extent(path: Path) -> float:
    """Seconds, faces, or pixels of the shorter side."""
    from quintet.media import audio, pixels
    from quintet.media.clips import reader as clips
    from quintet.media.meshes import files as meshes

    suffix = path.suffix.lower()
    try:
        if suffix in audio.SUFFIXES:
            return audio.probe(path).seconds
        if suffix in clips.SUFFIXES:
            return clips.probe(path).seconds
        if suffix in meshes.SUFFIXES:
            return len(meshes.read_mesh(path).faces)
        return min(pixels.probe(path))
    except BadFile:
        return float("nan")  # beyond a cap that the room sets higher


def measure(kind: Any) -> str:
    from quintet.media import audio
    from quintet.media.clips import reader as clips
    from quintet.media.meshes import files as meshes

    suffixes = set(kind.suffixes)
    if suffixes & set(meshes.SUFFIXES):
        return "faces"
    if suffixes & set(audio.SUFFIXES):
        return "seconds"
    if suffixes & (set(clips.SUFFIXES) - {".gif"}):
        return "seconds of a video, or pixels of an image's shorter side"
    return "pixels of the shorter side"


# -- captions -------------------------------------------------------------------------------


def captioned(kind: Any, config: Any, folder: Path, names: Sequence[str]) -> Collection[str]:
    """Names of the files that have a text, found as training finds them."""
    if kind.described is not None:
        describe = kind.described(folder, names)
        return {name for name in names if has_text(describe, name)}
    whole = dataclasses.replace(config, valid_limit=sys.maxsize)
    sides = [kind(folder, whole, split, 0) for split in ("train", "valid")]
    return {side.name(i) for side in sides for i in range(len(side)) if side.text(i)}


def has_text(describe: Any, name: str) -> bool:
    try:
        return bool(describe(name).get("text"))
    except BadFile:
        return False


def about_captions(names: Sequence[str], said: Collection[str], needed: bool) -> str:
    missing = [name for name in names if name not in said]
    if not missing:
        return f"captions: all {len(names)} files have one"
    first = f"{printable(missing[0])} is the first without"
    then = "they are left out" if needed else "they are trained on without"
    return f"captions: {len(missing)} of {len(names)} files have none, {first}; {then}"


# -- held-out files and copies --------------------------------------------------------------


@dataclasses.dataclass
class Held:
    sentence: str
    valid: Collection[str]


def about_split(names: Sequence[str], config: Any) -> Held:
    from quintet.media.splits import split_names

    train, valid = split_names(names, config.valid_fraction, 0)
    count = min(len(valid), config.valid_limit)
    sentence = (
        f"held out: {len(valid)} of {len(names)} files with seed 0 and valid_fraction "
        f"{config.valid_fraction:g}, of which {count} are measured; {len(train)} are trained on"
    )
    return Held(sentence, set(valid))


def about_copies(
    folder: Path, groups: dict[Path, list[Path]], valid: Collection[str]
) -> Iterator[str]:
    from quintet.media.folder import relative_name

    if not groups:
        yield "duplicates: none"
        return
    named = [
        [relative_name(folder, path) for path in (first, *copies)]
        for first, copies in groups.items()
    ]
    count = sum(len(group) - 1 for group in named)
    yield f"duplicates: {count} files are copies of others:"
    yield from (f"  {' = '.join(map(printable, group))}" for group in named[:SHOWN])
    if len(named) > SHOWN:
        yield f"  and {len(named) - SHOWN} more groups"
    across = sum(0 < sum(name in valid for name in group) < len(group) for group in named)
    if across:
        yield f"  {across} groups are on both sides of the split: held-out numbers will flatter"

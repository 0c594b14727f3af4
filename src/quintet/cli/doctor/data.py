"""`quintet doctor ROOM DATA`: report on a data folder, file by file."""

import dataclasses
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quintet import rooms
from quintet.engine.errors import RunError
from quintet.media.errors import BadFile, printable

SHOWN = 5
"""Duplicates listed by name."""


def check_folder(room: str, location: Path | str, aligner: Path | None = None) -> None:
    from quintet.cli.doctor.survey import Duplicates, histogram
    from quintet.media.folder import Listing, listing, relative_name
    from quintet.media.ranges import Outside, summary
    from quintet.media.splits import declared_split, passed_over, split_names

    data = rooms.room_named(room).data
    kind, config = data.Folder, data.Folder.Config()
    folder, listed = Path(location), Listing([], [], [], Counter(), 0, 0)
    if "://" not in str(location):
        listed = listing(folder, kind.suffixes, kind.left_out())
    names: list[str] = []
    measures = measures_of(kind)
    sizes, duplicates, damaged = array("d"), Duplicates(), 0
    outside: dict[str, Outside] = {}
    for path, problem in with_progress(data.check(location), len(listed.names)):
        names.append(relative_name(folder, path))
        duplicates.add(path)
        if problem is None:
            sizes.append(extent(path, measures))
        elif problem.outside:
            outside[names[-1]] = problem.outside
        else:
            damaged += 1
            print(problem)
    bad = damaged + len(outside)
    print(f"{len(names)} files, {len(names) - bad} usable, {bad} skipped by training")
    lines = summary(outside.values(), len(names), kind.what)
    for line in (*passed_over(listed, kind.unread_remedy), *lines):
        print(line)
    if bad == len(names):
        raise RunError(f"no file in {location} can be used")
    names = [name for name in names if name not in outside]
    print("\n".join([f"{' or '.join(m.unit for m in measures)}:", *histogram(sizes)]))
    if kind.summary is not None and folder.is_dir():
        print("\n".join(kind.summary(folder, names, float(np.nansum(sizes)))))
    with_caption = captioned(kind, config, location, names)
    print(about_captions(names, with_caption, bool(kind.lacking)))
    for line in about_lengths(room, list(with_caption.values())):
        print(line)
    usable = [name for name in names if name in with_caption] if kind.lacking else names
    declared = declared_split(usable)
    train, valid = declared or split_names(usable, config.valid_fraction, 0)
    rule = f"with seed 0 and valid_fraction {config.valid_fraction:g}"
    print(
        f"held out: {len(valid)} of {len(usable)} files {'by their folder' if declared else rule}, "
        f"{min(len(valid), config.valid_limit)} of them used for validation; "
        f"{len(train)} for training"
    )
    for sentence in about_duplicates(folder, duplicates.groups, set(valid)):
        print(sentence)
    if aligner is not None:
        family, trained = rooms.trained(aligner)
        doubts = family.module("doubts", "", "--aligner")
        for line in doubts.lines(doubts.doubtful(trained, folder)):
            print(line)


def with_progress(checked: Iterable[Any], total: int) -> Iterator[Any]:
    """Iterate with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    idle = not console.is_terminal
    yield from track(checked, "reading", total, console=console, transient=True, disable=idle)


# -- sizes ----------------------------------------------------------------------------------


class Measure(NamedTuple):
    """A measure of the size of files with these suffixes."""

    suffixes: Sequence[str]
    unit: str
    read: Callable[[Path], float]


def measures_of(kind: Any) -> list[Measure]:
    """Measures for the files of a room; the first with a file's suffix applies."""
    from quintet.media import audio, pixels
    from quintet.media.clips import reader as clips
    from quintet.media.meshes import files as meshes

    known = (
        Measure(meshes.readable(), "faces", lambda path: len(meshes.read_mesh(path).faces)),
        Measure(audio.SUFFIXES, "seconds", lambda path: audio.probe(path).seconds),
        Measure(clips.SUFFIXES, "seconds", lambda path: clips.probe(path).seconds),
        Measure(pixels.SUFFIXES, "pixels of the shorter side", lambda p: min(pixels.probe(p))),
    )
    return [each for each in known if set(each.suffixes) <= set(kind.suffixes)]


def extent(path: Path, measures: Iterable[Measure]) -> float:
    suffix = path.suffix.lower()
    try:
        return next((m.read(path) for m in measures if suffix in m.suffixes), float("nan"))
    except BadFile:
        return float("nan")  # above the default limit of `read`; the room's is higher


# -- captions -------------------------------------------------------------------------------


def captioned(kind: Any, config: Any, location: Path | str, names: Sequence[str]) -> dict[str, str]:
    """Captions by file, read as in training."""
    from quintet.media.folder import read_metadata
    from quintet.media.sidecars import say_absent

    folder, here = Path(location), "://" not in str(location)
    if kind.described is not None and here:
        describe = kind.described(folder, names)
        return {name: text for name in names if (text := text_of(describe, name))}
    whole = dataclasses.replace(config, valid_limit=sys.maxsize, exclude_held_out=False)
    if folder.is_dir():
        say_absent(folder, read_metadata(folder), names)
    with redirect_stderr(StringIO()):  # the skipped files have been printed
        sides = [kind(location, whole, split, 0) for split in ("train", "valid")]
    texts = ((side.name(i), side.text(i)) for side in sides for i in range(len(side)))
    return {name: text for name, text in texts if text}


def text_of(describe: Any, name: str) -> str:
    try:
        return str(describe(name).get("text") or "")
    except BadFile:
        return ""


def about_lengths(room: str, texts: Sequence[str]) -> Iterator[str]:
    """Lines about captions that recipes of the room would cut."""
    from quintet.nn.text import TOKENIZERS, text_sizes

    recipes_by_line: dict[str, list[str]] = {}
    for name, function in rooms.room_named(room).recipes.items():
        config = getattr(function(), "model", None)
        reads = getattr(config, "text", None) in TOKENIZERS and hasattr(config, "text_length")
        if reads and (line := text_sizes(config, texts).cut_line()):
            recipes_by_line.setdefault(line, []).append(f"{room}/{name}")
    for line, recipes in recipes_by_line.items():
        yield f"captions for {', '.join(recipes)}: {line}"


def about_captions(names: Sequence[str], captioned: Collection[str], required: bool) -> str:
    missing = [name for name in names if name not in captioned]
    if not missing:
        return f"captions: all {len(names)} files have one"
    first = f"{printable(missing[0])} is the first without"
    used = "they are left out" if required else "they are used without"
    return f"captions: {len(missing)} of {len(names)} files have none, {first}; {used}"


# -- duplicates -----------------------------------------------------------------------------


def about_duplicates(
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
    yield f"duplicates: {count} files are copies of other files:"
    yield from (f"  {' = '.join(map(printable, group))}" for group in named[:SHOWN])
    if len(named) > SHOWN:
        yield f"  and {len(named) - SHOWN} more groups"
    across = sum(0 < sum(name in valid for name in group) < len(group) for group in named)
    if across:
        yield f"  {across} groups are in both splits: validation metrics will be optimistic"

"""`quintet judges`, and `quintet evaluate --pair`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from quintet.cli.common import check_positive, parse, say
from quintet.engine.errors import RunError

Medium = Literal["image", "video", "speech", "music", "mesh"]


@dataclasses.dataclass(kw_only=True)
class Judges:
    """Show the judges of each medium, and what those need that do not work on this machine."""


def judges(given: list[str]) -> None:
    from quintet.judges import media

    parse(Judges, given, "judges")
    for medium in media.MEDIA:
        print(medium)
        for judge in media.module_of(medium).JUDGES:
            problem = judge().problem()
            print(f"  {judge.name:<18} {judge.about}")
            if problem:
                print(f"  {'':<18} {problem}")


@dataclasses.dataclass(kw_only=True)
class Pair:
    """Judge the files of one folder against those of another, without any run. Files belong
    together if their paths are equal but for the suffix; sets (FID, coverage) need no pairs. Prints
    a table and one line of JSON with the receipts."""

    pair: Annotated[tuple[Path, Path], tyro.conf.arg(metavar="REFERENCES CANDIDATES")]
    """The folder of originals, and the folder to judge."""
    judges: str | None = None
    """Names of judges, separated by commas; the default is all that work on this machine."""
    medium: Medium | None = None
    """The medium; the default follows from the files, sounds being speech."""
    size: int | None = None
    """Resize and crop pictures and frames to squares of this side; the default is as they are."""
    frames: int | None = None
    """Judge this many frames of each clip; the default is all."""
    rate: int | None = None
    """Sample rate of sounds; the default is that of the judge."""


def pair(asked: Pair) -> None:
    from quintet.files import reading_once
    from quintet.judges import media
    from quintet.judges.base import Options
    from quintet.judges.folders import files_in, judged

    for flag in ("size", "frames", "rate"):
        check_positive(f"--{flag}", getattr(asked, flag))
    medium = asked.medium or media.medium_of(asked.pair[0])
    module = media.module_of(medium)
    chosen = media.chosen(medium, asked.judges)
    if not chosen:
        raise RunError(f"no judge of {medium} works on this machine; quintet judges says why")
    read, preparation = module.reader(Options(asked.size, asked.frames, asked.rate))
    originals, others = (files_in(folder, module.SUFFIXES) for folder in asked.pair)
    with reading_once():  # transcripts of a folder
        scores = judged(chosen, originals, others, read, preparation)
    show(scores)
    if asked.judges is None:
        silent = [judge.name for judge in module.JUDGES if judge.name not in scores]
        if silent:
            say(f"not judged: {', '.join(silent)}; quintet judges says what they need")
    print(json.dumps({name: score.as_json() for name, score in scores.items()}, allow_nan=False))


def show(scores: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("judge", "value", "95 % interval", "count", "receipt")
    for name, score in scores.items():
        bounds = "" if score.low is None else f"{score.low:.5g} – {score.high:.5g}"
        receipt = score.receipt
        table.add_row(name, f"{score.value:.5g}", bounds, str(receipt.count), receipt.digest)
    Console().print(table)

"""Texts of files, each in a text file beside it, and what becomes of files that have none."""

import warnings
from collections.abc import Container, Sequence
from pathlib import Path

from quintet.media.errors import BadFile, printable
from quintet.media.folder import files, relative_name

MAX_BYTES = 1_000_000
REMEDY = "give metadata.jsonl with `file_name` and `text`, or a text file beside each"


def texts_beside(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """By name, the text file that stands beside it: `a/b.txt` for `a/b.wav`."""
    # Listed and not guessed, so that a link that leads out of the folder is none of them.
    there = {relative_name(folder, path) for path in files(folder, (".txt",))}
    pairs = ((name, f"{name.rpartition('.')[0]}.txt") for name in names)
    return {name: text for name, text in pairs if text in there}


def read_beside(path: Path, what: str) -> str:
    """All of a text file; `what` is what should be in it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadFile(path, f"holds more than {MAX_BYTES:,} bytes", f"give {what}, not a book")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 ({error.reason})", "save it as UTF-8") from error
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})", "check the path") from error
    if not text.strip():
        raise BadFile(path, "is empty", f"write {what} into it")
    return text


def with_texts(
    folder: Path, names: Sequence[str], known: Container[str], most: float, said: str
) -> list[str]:
    """The names that are known. The others are counted and the first is named; past the share
    `most` of them the folder is refused. `said` is such as "sounds have no caption"."""
    found = [name for name in names if name in known]
    lost = len(names) - len(found)
    if not lost:
        return found
    first = next(name for name in names if name not in known)
    refuse_missing(folder, len(names), len(found), first, most, said)
    return found


def refuse_missing(
    folder: Path, count: int, found: int, first: str, most: float, said: str
) -> None:
    """BadFile where too many have no text, or a warning."""
    reason = f"{count - found} of {count} {said}, {printable(first)} is the first"
    if not found or count - found > most * count:
        raise BadFile(folder, reason, REMEDY)
    warnings.warn(f"{printable(folder)}: {reason}; they are left out: {REMEDY}", stacklevel=4)

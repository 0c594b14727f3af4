"""Sidecar text files (captions, transcripts), and the handling of files without one."""

import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

from quintet.media.errors import BadFile, printable
from quintet.media.folder import files, relative_name
from quintet.media.ranges import say

MAX_BYTES = 1_000_000
REMEDY = "give metadata.jsonl with `file_name` and `text`, or a text file beside each"


def say_absent(folder: Path, texts: Iterable[str], names: Sequence[str]) -> None:
    """Texts of files that do not exist; `names` are some that do."""
    others = set(texts).difference(names)
    absent = sorted(name for name in others if not (folder / name).exists())
    if absent:
        counted = f"{len(absent):,}, {printable(absent[0])} is the first"
        say(f"{printable(folder)}: its metadata names files that do not exist: {counted}")


def _beside(name: str) -> str:
    return f"{name.rpartition('.')[0]}.txt"


def texts_beside(
    folder: Path, names: Sequence[str], where: Callable[[str], str] = _beside
) -> dict[str, str]:
    """Text file of each name that has one; `where` maps `a/b.wav` to `a/b.txt` by default."""
    # Listed, so that links out of the folder are skipped.
    present = {relative_name(folder, path) for path in files(folder, (".txt",))}
    pairs = ((name, where(name)) for name in names)
    return {name: text for name, text in pairs if text in present}


def read_beside(path: Path, what: str) -> str:
    """Content of a sidecar file; `what` names the expected content in errors."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadFile(path, f"holds more than {MAX_BYTES:,} bytes", f"shorten {what}")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 ({error.reason})", "save it as UTF-8") from error
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})", "check the path") from error
    if not text.strip():
        raise BadFile(path, "is empty", f"write {what} into it")
    return text


def with_texts(
    folder: Path, names: Sequence[str], known: Container[str], max_missing: float, problem: str
) -> list[str]:
    """Names with a text. Names without one are reported with `problem` ("sounds have no caption");
    more than the fraction `max_missing` of them is an error."""
    present = [name for name in names if name in known]
    if len(present) == len(names):
        return present
    first = next(name for name in names if name not in known)
    refuse_missing(folder, len(names), len(present), first, max_missing, problem)
    return present


def refuse_missing(
    folder: Path, count: int, present: int, first: str, max_missing: float, problem: str
) -> None:
    """Warn about files without a text, or raise BadFile if there are too many."""
    reason = f"{count - present} of {count} {problem}, {printable(first)} is the first"
    if not present or count - present > max_missing * count:
        raise BadFile(folder, reason, REMEDY)
    warnings.warn(f"{printable(folder)}: {reason}; skipped; {REMEDY}", stacklevel=4)

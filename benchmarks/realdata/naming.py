"""What the kinds of data share: a sample, and names made of file names."""

import re
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Sample:
    name: str
    """Unique; decides the order."""
    text: str
    group: str
    """What must not be in both splits."""
    about: dict[str, Any]
    """`source` (the package), `license`, and more for the metadata."""
    path: Path
    box: tuple[int, int, int, int] | None = None
    """The part of a picture."""
    start: float = 0.0
    """Where a piece of a sound begins, in seconds."""


def copied(sample: Sample, path: Path) -> None:
    """Write a sample whose file is as it shall be."""
    shutil.copyfile(sample.path, path)


def found(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def in_letters(text: str, limit: int = 70) -> str:
    """Latin letters, digits and hyphens; "x" where none is left."""
    latin = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "-", latin).strip("-").lower()[:limit] or "x"


def untaken(base: str, taken: set[str]) -> str:
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name


def as_words(name: str) -> str:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.sub(r"[_\-.+]+", " ", apart).split())

"""What all folders of data have in common: which files there are, held-out ones, and captions."""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from os import fsencode
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol

import numpy as np

from quintet.media.errors import BadFile
from quintet.media.folder import files, read_metadata, relative_name

Split = Literal["train", "valid"]


class Key(Protocol):
    """Randomness that belongs to one sample of one epoch."""

    def random(self, name: str) -> Random: ...
    def numpy(self, name: str) -> np.random.Generator: ...


def check_split(split: str) -> None:
    if split not in ("train", "valid"):
        raise ValueError(f"split is {split!r}: give 'train' or 'valid'")


def _rank(seed: int, name: str) -> int:
    """A number of 64 bits that depends on nothing but the seed and the file's name."""
    # fsencode, because a name on disk need not be valid UTF-8.
    return int.from_bytes(blake2b(b"%d/" % seed + fsencode(name), digest_size=8).digest(), "big")


def split_names(
    names: Sequence[str], fraction: float, seed: int, limit: int | None = None
) -> tuple[list[str], list[str]]:
    """Names for training and for validation, each in the order given.

    Every name decides for itself, so new files move no old ones. Only where one side would be empty
    the nearest name changes sides; a single file is for training. Past `limit` the held-out names
    that rank last are left out of both.
    """
    ranks = {name: _rank(seed, name) for name in names}
    ordered = sorted(names, key=lambda name: ranks[name])
    held = sum(rank < fraction * 2**64 for rank in ranks.values())
    held = min(max(held, 1), len(names) - 1) if len(names) > 1 else 0
    valid = set(ordered[:held])
    kept = set(ordered[: held if limit is None else min(held, limit)])
    return [n for n in names if n not in valid], [n for n in names if n in kept]


def find(folder: Path, suffixes: Sequence[str], what: str) -> list[Path]:
    """Files of these kinds; BadFile where there are none. `what` is what the files are called."""
    found = files(folder, suffixes)
    if not found:
        reason = f"holds no {what} ({', '.join(suffixes)})"
        remedy = f"put {what} there or in sub-folders; links that lead out of it are not followed"
        raise BadFile(folder, reason, remedy)
    return found


def texts(folder: Path, names: Sequence[str], what: str) -> dict[str, str]:
    """Captions by file name, from the folder's metadata."""
    metadata = read_metadata(folder)
    if metadata and not any(name in metadata for name in names):
        reason = f"its metadata names none of its {len(names)} {what}"
        raise BadFile(folder, reason, "give paths under the folder in the column `file_name`")
    return {name: row["text"] for name, row in metadata.items() if row.get("text")}


def examined(
    paths: Sequence[Path], read: Callable[[Path], object]
) -> Iterator[tuple[Path, str | None]]:
    """Each file, read in full, with what is wrong with it or None."""
    for path in paths:
        try:
            read(path)
        except BadFile as bad:
            yield path, str(bad)
        else:
            yield path, None


class InFolder:
    """The files of a folder on one side of the split, by `valid_fraction` and `valid_limit` of the
    configuration. Nothing is opened before it is asked for: a damaged file raises BadFile when it
    is read."""

    suffixes: Sequence[str]
    """How names of the files end."""
    what: str
    """What the files are called."""

    def __init__(self, folder: Path | str, config: Any, split: Split, seed: int) -> None:
        check_split(split)
        self.folder, self.config = Path(folder), config
        found = find(self.folder, self.suffixes, self.what)
        usable = self.usable([relative_name(self.folder, path) for path in found])
        limit = config.valid_limit if split == "valid" else None
        train, valid = split_names(usable, config.valid_fraction, seed, limit)
        self._names = train if split == "train" else valid

    def usable(self, names: list[str]) -> list[str]:
        """Those with all that a sample needs; by default each, with a caption or without."""
        self._texts = texts(self.folder, names, self.what)
        return names

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """The file's path under the folder."""
        return self._names[index]

    def text(self, index: int) -> str:
        """The file's caption, or nothing."""
        return self._texts.get(self._names[index], "")


class Builtin:
    """Procedural samples, no two alike, the same in every run, by `builtin_count` and `valid_limit`
    of the configuration. Those for training have even numbers and held-out ones odd numbers, so
    they never meet."""

    what: str
    """What one of them is called."""

    def __init__(self, config: Any, split: Split, seed: int = 0) -> None:
        check_split(split)
        self.config, self.split, self.seed = config, split, seed

    def __len__(self) -> int:
        return self.config.builtin_count if self.split == "train" else self.config.valid_limit

    def number(self, index: int) -> int:
        """The number that the sample is composed from."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.what} {index} of {len(self)}")
        return 2 * index + (self.split == "valid")

    def name(self, index: int) -> str:
        """The sample's place in the built-in data."""
        return f"built-in {self.split} {self.what} {index}"

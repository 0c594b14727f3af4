"""What all folders of data have in common: which files there are, held-out ones, and captions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from math import ceil
from os import fsencode
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol

import numpy as np

from quintet.media.errors import BadFile
from quintet.media.folder import files, read_metadata, relative_name
from quintet.media.shard_places import are_shards, without_window
from quintet.media.shards import Numbers, Shards, open_shards
from quintet.media.sidecars import refuse_missing

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


def split_numbers(
    names: Iterable[bytes], fraction: float, seed: int, limit: int | None = None
) -> tuple[Numbers, Numbers]:
    """As `split_names`, for names by the million: their numbers, for training and validation."""
    blank, ranks = blake2b(b"%d/" % seed, digest_size=8), bytearray()
    for name in names:
        each = blank.copy()
        each.update(name)
        ranks += each.digest()
    found = np.frombuffer(ranks, ">u8").astype(np.uint64)
    edge = ceil(fraction * 2**64)
    held = int((found < edge).sum()) if edge < 2**64 else len(found)
    held = min(max(held, 1), len(found) - 1) if len(found) > 1 else 0
    lowest = np.argsort(found, kind="stable")[:held]
    kept = lowest if limit is None else lowest[:limit]
    return np.delete(np.arange(len(found)), lowest), np.sort(kept)


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
        except (OSError, ValueError, EOFError, MemoryError) as bad:
            yield path, str(bad) if isinstance(bad, BadFile) else f"{path}: {bad}"
        else:
            yield path, None


def examined_shards(
    folder: Path | str, suffixes: Sequence[str], side: "Callable[[Split], InFolder]"
) -> Iterator[tuple[Path, str | None]] | None:
    """Each sample of shards, read as training reads it, with what is wrong with it or None; no
    iterator where the data is a folder of files."""
    if not are_shards(without_window(str(folder))[0], suffixes):
        return None
    sides = (side("train"), side("valid"))
    places = ((each, index) for each in sides for index in range(len(each)))
    return _examined_places(places)


def _examined_places(
    places: "Iterable[tuple[InFolder, int]]",
) -> Iterator[tuple[Path, str | None]]:
    for each, index in places:
        yield from examined([each.path(index)], lambda _: each.keyed(index, None))  # noqa: B023


class InFolder:
    """The files of a folder, or of shards, on one side of the split, by `valid_fraction` and
    `valid_limit` of the configuration. Nothing is opened before it is asked for: a damaged file
    raises BadFile when it is read."""

    suffixes: Sequence[str]
    """How names of the files end."""
    what: str
    """What the files are called."""
    lacking: str = ""
    """What is said of files without a text, where each must have one: "images have no caption"."""
    window: int = 0
    """How far neighbours in shards are mixed with others; 0 for all over the data."""

    def __init__(self, folder: Path | str, config: Any, split: Split, seed: int) -> None:
        check_split(split)
        self.folder, self.config = Path(folder), config
        self.shards = open_shards(str(folder), self.suffixes, self.what)
        limit = config.valid_limit if split == "valid" else None
        side = 0 if split == "train" else 1
        if self.shards is not None:
            self._numbers = self._of_shards(self.shards, seed, limit)[side]
            self.window = self.shards.window
            return
        found = find(self.folder, self.suffixes, self.what)
        usable = self.usable([relative_name(self.folder, path) for path in found])
        self._names = split_names(usable, config.valid_fraction, seed, limit)[side]

    def _of_shards(self, shards: Shards, seed: int, limit: int | None) -> tuple[Numbers, Numbers]:
        """Numbers of samples for training and for validation."""
        names = shards.names()
        if not self.lacking:
            return split_numbers(names, self.config.valid_fraction, seed, limit)
        said = shards.said()
        numbers = np.flatnonzero(said)
        if len(numbers) < len(said):
            first = shards.name(int(np.argmin(said)))
            most = self.config.max_missing
            refuse_missing(self.folder, len(said), len(numbers), first, most, self.lacking)
            names = compress(names, said)
        train, valid = split_numbers(names, self.config.valid_fraction, seed, limit)
        return numbers[train], numbers[valid]

    def usable(self, names: list[str]) -> list[str]:
        """Those with all that a sample needs; by default each, with a caption or without."""
        self._texts = texts(self.folder, names, self.what)
        return names

    def __len__(self) -> int:
        return len(self._names if self.shards is None else self._numbers)

    def name(self, index: int) -> str:
        """The file's path under the folder."""
        if self.shards is not None:
            return self.shards.name(int(self._numbers[index]))
        return self._names[index]

    def path(self, index: int) -> Path:
        """Where the file is; one in a shard comes into memory when it is opened."""
        if self.shards is not None:
            return self.shards.path(int(self._numbers[index]))
        return self.folder / self._names[index]

    def row(self, index: int) -> Mapping[str, Any]:
        """What shards say of a file; nothing with a folder, where each room knows where to look."""
        return {} if self.shards is None else self.shards.row(int(self._numbers[index]))

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The sample, as its room reads it."""
        raise NotImplementedError

    def text(self, index: int) -> str:
        """The file's caption, or nothing."""
        if self.shards is not None:
            return str(self.row(index).get("text") or "")
        return self._texts.get(self._names[index], "")

    def prefetch(self, indices: Sequence[int]) -> None:
        """A word that these will be read next."""
        if self.shards is not None:
            self.shards.prefetch([int(self._numbers[index]) for index in indices])


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

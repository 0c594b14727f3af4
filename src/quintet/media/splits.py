"""Base classes of datasets: file lists, train/validation split, captions."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import compress
from math import ceil
from os import fsencode
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from quintet.files import OUTPUTS, once
from quintet.media import audio, pixels
from quintet.media.clips import reader as clips
from quintet.media.errors import BadFile, OutOfRange, printable
from quintet.media.folder import Listing, listing, read_metadata
from quintet.media.held_out import (
    Contents,
    content_digest,
    file_contents,
    outside,
    report_copies,
    shared,
)
from quintet.media.meshes import files as meshes
from quintet.media.ranges import Outside, examine_headers, say, within
from quintet.media.shards.dataset import Numbers, Samples, holds_samples, open_shards
from quintet.media.sidecars import refuse_missing, say_absent
from quintet.media.split_files import read_split

Split = Literal["train", "valid"]
MEDIA = (*pixels.SUFFIXES, *audio.SUFFIXES, *clips.SUFFIXES, *meshes.SUFFIXES)
VALID_FOLDERS = ("validation", "valid", "val", "test")
"""Sub-folders for validation data next to `train`, in order of precedence."""

SMALL = 32_000_000
"""Size in bytes up to which the files of a folder are compared by content on resume."""
LEAST_VALID = 8
"""Minimum number of held-out samples, if there are enough samples."""


class Key(Protocol):
    """Random generators keyed by sample and epoch."""

    def random(self, name: str) -> Random: ...
    def numpy(self, name: str) -> np.random.Generator: ...


def check_split(split: str) -> None:
    if split not in ("train", "valid"):
        raise ValueError(f"split is {split!r}: give 'train' or 'valid'")


def split_names(
    names: Sequence[str], fraction: float, seed: int, limit: int | None = None
) -> tuple[list[str], list[str]]:
    """Split names into training and validation, keeping their order."""
    # fsencode, because a name on disk need not be valid UTF-8.
    train, valid = split_numbers(map(fsencode, names), fraction, seed, limit)
    return [names[int(i)] for i in train], [names[int(i)] for i in valid]


def split_numbers(
    names: Iterable[bytes], fraction: float, seed: int, limit: int | None = None
) -> tuple[Numbers, Numbers]:
    """Numbers of the names for training and validation, ascending.

    Each name is assigned by its own 64-bit hash, so new files do not move old ones. A small folder
    still holds out `LEAST_VALID` names (or a quarter, or the limit), those of lowest hash; a single
    file is for training. Beyond `limit`, the held-out names of highest hash belong to neither side.
    """
    ranks = _ranks(names, seed)
    threshold = ceil(fraction * 2**64)
    # A threshold of 2**64 does not fit into uint64.
    num_valid = int((ranks < threshold).sum()) if threshold < 2**64 else len(ranks)
    least = max(1, min(LEAST_VALID, limit or LEAST_VALID, len(ranks) // 4))
    num_valid = min(max(num_valid, least), len(ranks) - 1) if fraction and len(ranks) > 1 else 0
    held_out = np.argsort(ranks, kind="stable")[:num_valid]
    valid = held_out if limit is None else held_out[:limit]
    return np.delete(np.arange(len(ranks)), held_out), np.sort(valid)


def _ranks(names: Iterable[bytes], seed: int) -> npt.NDArray[np.uint64]:
    """64-bit hashes of the names."""
    prefix, digests = blake2b(b"%d/" % seed, digest_size=8), bytearray()
    for name in names:
        hasher = prefix.copy()
        hasher.update(name)
        digests += hasher.digest()
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def limited(names: list[str], seed: int, limit: int | None) -> list[str]:
    """At most `limit` of the names, those of lowest hash, in their order."""
    if limit is None or len(names) <= limit:
        return names
    lowest = np.argsort(_ranks(map(fsencode, names), seed), kind="stable")[:limit]
    return [names[int(i)] for i in np.sort(lowest)]


def declared_split(names: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Training and validation names of a folder that has sub-folders `train` and `validation` (or
    `valid`, `val`, `test`); files elsewhere belong to neither. None for any other folder."""
    by_folder: dict[str, list[str]] = {}
    for name in names:
        first, slash, _ = name.partition("/")
        by_folder.setdefault(first.lower() if slash else "", []).append(name)
    valid = next((by_folder[name] for name in VALID_FOLDERS if name in by_folder), None)
    return (by_folder["train"], valid) if valid and "train" in by_folder else None


def find(folder: Path, suffixes: Sequence[str], what: str) -> list[Path]:
    """Files with these suffixes, or BadFile if there are none. `what` names them in errors."""
    return [folder / name for name in _listed(folder, suffixes, what, ()).names]


def _listed(folder: Path, suffixes: Sequence[str], what: str, unread: Collection[str]) -> Listing:
    key = ("listing", folder, *suffixes, *unread)
    listed = once(key, lambda: listing(folder, suffixes, unread))
    if not listed.names:
        passed = "".join(f"; {line}" for line in passed_over(listed))
        reason = f"holds no {what} ({', '.join(suffixes)}){passed}"
        remedy = f"put {what} there or in sub-folders; links out of the folder are not followed"
        raise BadFile(folder, reason, remedy)
    return listed


def passed_over(listed: Listing, remedy: str = "") -> Iterator[str]:
    """Lines about files of formats that are not read, links out of the folder, and outputs."""
    if listed.others:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in listed.others.most_common())
        yield f"left out, formats that are not read: {kinds}{remedy and f'; {remedy}'}"
    if listed.links:
        yield f"left out, links that lead out of the folder: {listed.links:,}; copy the files"
    if listed.outputs:
        use = f"delete {OUTPUTS} beside them to use them"
        yield f"left out, outputs of `sample` or `evaluate`: {listed.outputs:,}; {use}"


def texts(folder: Path, names: Sequence[str], what: str) -> dict[str, str]:
    """Captions by file name, from the folder's metadata."""
    metadata = read_metadata(folder)
    if metadata and not any(name in metadata for name in names):
        reason = f"its metadata names none of its {len(names)} {what}"
        raise BadFile(folder, reason, "give paths under the folder in the column `file_name`")
    say_absent(folder, metadata, names)
    return {name: row["text"] for name, row in metadata.items() if row.get("text")}


class Problem(str):
    """A sentence about a file that cannot be used."""

    outside: Outside | None = None
    """The limit that it exceeds; None for a damaged file."""

    @classmethod
    def of(cls, path: Path, error: BaseException) -> "Problem":
        problem = cls(error if isinstance(error, BadFile) else f"{path}: {error}")
        problem.outside = Outside.of(error) if isinstance(error, OutOfRange) else None
        return problem


def examined(
    paths: Sequence[Path], read: Callable[[Path], object]
) -> Iterator[tuple[Path, Problem | None]]:
    """Decode each file; yield it with its problem, or None."""
    return _examined((path, partial(read, path)) for path in paths)


def _examined(
    samples: Iterable[tuple[Path, Callable[[], object]]],
) -> Iterator[tuple[Path, Problem | None]]:
    for path, read in samples:
        try:
            read()
        except (OSError, ValueError, EOFError, MemoryError) as bad:
            yield path, Problem.of(path, bad)
        else:
            yield path, None


def examined_shards(
    folder: Path | str, suffixes: Sequence[str], side: "Callable[[Split], InFolder]"
) -> Iterator[tuple[Path, Problem | None]] | None:
    """Decode each sample of shards as training does; yield it with its problem, or None. Returns
    None if the data is a folder of files."""
    if not holds_samples(str(folder), suffixes):
        return None
    sides = (side("train"), side("valid"))
    return _examined(
        (data.path(index), partial(data.keyed, index, None))
        for data in sides
        for index in range(len(data))
    )


class InFolder:
    """One split of the files of a folder or of shards, by `valid_fraction` and `valid_limit` of the
    configuration. Files outside of the range of the configuration (`examine`) belong to neither
    split. Others are opened lazily: a damaged file raises BadFile when it is read."""

    suffixes: Sequence[str]
    """Suffixes of the files."""
    unread: Sequence[str] = ()
    """Suffixes of the same medium that are not read, to be counted."""
    unread_remedy: str = ""
    companions: Sequence[str] = ()
    """Suffixes of other media that belong to the files, such as textures."""
    what: str
    """Plural noun for the files in messages."""
    lacking: str = ""
    """Problem of files without a required text: "images have no caption"."""
    Config: ClassVar[type]
    """Class of the settings."""
    described: ClassVar[Callable[..., Callable[[str], dict[str, Any]]] | None] = None
    """The metadata of each file, where there is more than metadata.jsonl."""
    layout: ClassVar[Callable[[Path], str | None] | None] = None
    """The name of a published layout that a folder has, or None."""
    summary: ClassVar[Callable[[Path, Sequence[str], float], Iterable[str]] | None] = None
    """Lines about these files of a folder, with their total extent, for the doctor."""
    window: int = 0
    """Shuffle window over shards in samples; 0 for a global shuffle."""
    _extents: Mapping[str, float] = MappingProxyType({})

    def __init__(
        self, folder: Path | str, config: Any, split: Split | Literal["all"], seed: int
    ) -> None:
        if split != "all":
            check_split(split)
        self._shares_folder = split == "valid" and not config.valid_folder
        if split == "valid":
            folder = config.valid_folder or folder
        self.folder, self.config = Path(folder), config
        self.shards = open_shards(str(folder), self.suffixes, self.what)
        if self.shards is not None:
            train, valid = self._of_shards(self.shards, seed, config.valid_limit)
            self._numbers = valid if split == "valid" else self._apart(train, valid)
            self.window = self.shards.window
            return
        listed = _listed(self.folder, self.suffixes, self.what, self.left_out())
        for line in passed_over(listed, self.unread_remedy):
            say(f"{printable(self.folder)}: {line}")
        self._listed = listed
        self._names = self._chosen(self._in_range(listed), split, seed)

    @classmethod
    def whole(cls, folder: Path | str | None, config: Any) -> Self:
        """All samples in the order of their names, or of the shards."""
        if folder is None:
            raise BadFile("DATA", "is missing", "give a folder or shards; built-in data is neither")
        unsplit = {"valid_fraction": 0.0, "valid_folder": None, "split_file": None}
        return cls(folder, replace(config, **unsplit, exclude_held_out=False), "all", 0)

    def _chosen(self, names: list[str], split: str, seed: int) -> list[str]:
        """The samples of the split, of these files of the folder."""
        if split == "all":
            return self.usable(names)
        config, train = self.config, split == "train"
        if train and config.valid_folder and config.exclude_held_out:
            names = outside(self.folder, names, config.valid_folder, self.what)
        if config.split_file:
            chosen = read_split(config.split_file)
            own_folder = bool(config.valid_folder)
            samples = chosen.choose(self.folder, self.usable(names), split, own_folder)
            settled = chosen.settled or not train  # a run has recorded what it leaves out
            return samples if settled else self._apart(samples, list(chosen.sides["valid"]))
        declared = (names, names) if config.valid_folder else declared_split(names)
        if declared and train:
            return self._apart(self.usable(declared[0]), declared[1], whole=True)
        if declared:
            return limited(self.usable(declared[1]), seed, config.valid_limit)
        limits = config.valid_fraction, seed, config.valid_limit
        samples, held_out = split_names(self.usable(names), *limits)
        return self._apart(samples, held_out) if train else held_out

    def _apart(self, samples: Any, held_out: Any, whole: bool = False) -> Any:
        """Training samples that are not copies of held-out ones, as names or as numbers of shards;
        `whole` compares files, not segments of them."""
        if not self.config.exclude_held_out or not len(samples):
            return samples
        valid_folder = self.config.valid_folder
        if valid_folder:
            held, whole = self._contents_of_folder(valid_folder), True
        else:
            held = self._contents(held_out)
        copies = shared(self._contents(samples, whole), held)
        report_copies(self.folder, copies, self.what, valid_folder)
        if self.shards is not None:
            return samples[~copies]
        return list(compress(samples, (~copies).tolist()))

    def _contents(self, samples: Any, whole: bool = False) -> Contents:
        if self.shards is not None:
            return self.shards.contents(samples)
        sizes = dict(zip(self._listed.names, self._listed.sizes))
        return file_contents(self.folder, samples, sizes, whole)

    def _contents_of_folder(self, folder: str) -> Contents:
        """Of all files of another folder, or samples of other shards."""
        shards = open_shards(folder, self.suffixes, self.what)
        if shards is not None:
            return shards.contents(np.arange(len(shards)))
        listed = _listed(Path(folder), self.suffixes, self.what, self.unread)
        return file_contents(Path(folder), listed.names, dict(zip(listed.names, listed.sizes)))

    def contents(self) -> Contents:
        """What tells the samples apart from others."""
        return self._contents(self._names if self.shards is None else self._numbers)

    @classmethod
    def left_out(cls) -> Sequence[str]:
        """Suffixes of media that are not read here, to be counted."""
        return sorted({*cls.unread, *MEDIA} - {*cls.suffixes, *cls.companions})

    def _in_range(self, listed: Listing) -> list[str]:
        """Names of the files that `examine` does not leave out."""
        settings = self.range_settings()
        if settings is None:
            return listed.names
        key = f"{type(self).__qualname__} {settings!r}"
        ranges = examine_headers(self.folder, listed, key, self.examine, self.what)
        self._extents = ranges.extents
        return within(self.folder, listed.names, ranges.outside, self.what)

    def range_settings(self) -> object:
        """Everything that the result of `examine` depends on besides the file; None to take all."""
        return None

    def examine(self, path: Path) -> float:
        """Check a file by its header: OutOfRange if the configuration does not take it. Returns its
        extent if that is needed later, such as its seconds, otherwise 0. Cached."""
        raise NotImplementedError

    def extent(self, index: int) -> float:
        """The result of `examine`; 0 if unknown, as for shards and unreadable files."""
        return 0.0 if self.shards is not None else self._extents.get(self._names[index], 0.0)

    def _of_shards(self, shards: Samples, seed: int, limit: int | None) -> tuple[Numbers, Numbers]:
        """Sample numbers for training and validation."""
        names = shards.names()
        if not self.lacking:
            return self._split_numbers(np.arange(len(shards)), names, seed, limit)
        has_text = shards.has_text()
        numbers = np.flatnonzero(has_text)
        if len(numbers) < len(has_text):
            first = shards.name(int(np.argmin(has_text)))
            limit_missing = self.config.max_missing
            counts = len(has_text), len(numbers)
            refuse_missing(self.folder, *counts, first, limit_missing, self.lacking)
            names = compress(names, has_text)
        return self._split_numbers(numbers, names, seed, limit)

    def _split_numbers(
        self, numbers: Numbers, names: Iterable[bytes], seed: int, limit: int | None
    ) -> tuple[Numbers, Numbers]:
        if self.config.valid_folder:
            return numbers, numbers[:limit]  # packing has shuffled them
        train, valid = split_numbers(names, self.config.valid_fraction, seed, limit)
        return numbers[train], numbers[valid]

    def usable(self, names: list[str]) -> list[str]:
        """Names with everything a sample needs; by default all, captioned or not."""
        self._texts = texts(self.folder, names, self.what)
        return names

    def __len__(self) -> int:
        return len(self._names if self.shards is None else self._numbers)

    def name(self, index: int) -> str:
        """Path of the file relative to the folder."""
        if self.shards is not None:
            return self.shards.name(int(self._numbers[index]))
        return self._names[index]

    def path(self, index: int) -> Path:
        """Path of the file; a file in a shard is read into memory when opened."""
        if self.shards is not None:
            return self.shards.path(int(self._numbers[index]))
        return self.folder / self.file_of(self._names[index])

    def file_of(self, name: str) -> str:
        """The file of a sample; several samples may be parts of one."""
        return name

    def files(self) -> Mapping[str, str]:
        """Size of each file, with a digest of its content in a small folder; shards have one entry
        for all names."""
        if self.shards is not None:
            names = blake2b(digest_size=16)
            for name in compress(self.shards.names(), self._mask()):
                names.update(name + b"\n")
            return {str(self.folder): names.hexdigest()}
        sizes = dict(zip(self._listed.names, self._listed.sizes))
        owners = {name: self.file_of(name) for name in self._names}
        contents = {file: str(sizes[file]) for file in owners.values()}
        if sum(sizes[file] for file in contents) <= SMALL:
            contents = {f: f"{size} {_digest(self.folder / f)}" for f, size in contents.items()}
        return {name: contents[file] for name, file in owners.items()}

    def _mask(self) -> Iterator[bool]:
        chosen = np.zeros(len(self.shards or ()), bool)
        chosen[self._numbers] = True
        return iter(chosen.tolist())

    def unused(self) -> Sequence[str]:
        """The other files of the folder; the training split has those of a shared folder."""
        if self.shards is not None or self._shares_folder:
            return ()
        used = set(self._names)
        return [name for name in self._listed.names if name not in used]

    def row(self, index: int) -> Mapping[str, Any]:
        """Metadata from shards; empty for a folder, whose metadata each room reads itself."""
        return {} if self.shards is None else self.shards.row(int(self._numbers[index]))

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The decoded sample."""
        raise NotImplementedError

    def text(self, index: int) -> str:
        """Caption of the file, or an empty string."""
        if self.shards is not None:
            return str(self.row(index).get("text") or "")
        return self._texts.get(self._names[index], "")

    def prefetch(self, indices: Sequence[int]) -> None:
        """Announce samples that will be read next."""
        if self.shards is not None:
            self.shards.prefetch([int(self._numbers[index]) for index in indices])


def _digest(path: Path) -> str:
    return content_digest(path)[:8].hex() or "unreadable"


class Builtin:
    """Procedural dataset of distinct samples, identical in every run; sized by `builtin_count` and
    `valid_limit` of the configuration. Training samples have even numbers, validation samples odd
    ones, so the splits are disjoint."""

    what: str
    """Singular noun for a sample in messages."""

    def __init__(self, config: Any, split: Split, seed: int = 0) -> None:
        check_split(split)
        self.config, self.split, self.seed = config, split, seed

    def __len__(self) -> int:
        return self.config.builtin_count if self.split == "train" else self.config.valid_limit

    def number(self, index: int) -> int:
        """Number that seeds the sample."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.what} {index} of {len(self)}")
        return 2 * index + (self.split == "valid")

    def name(self, index: int) -> str:
        """Name of the sample in messages."""
        return f"built-in {self.split} {self.what} {index}"


def check_files(
    kind: "type[InFolder]",
    folder: Path | str,
    settings: Any,
    reader: Callable[[list[Path]], Callable[[Path], object]],
) -> Iterator[tuple[Path, Problem | None]]:
    """Each file of a folder, or each sample of shards, with its problem or None.

    `reader` returns the function that reads one of the files; `kind` opens a split of shards.
    """
    packed = examined_shards(folder, kind.suffixes, lambda split: kind(folder, settings, split, 0))
    if packed is not None:
        return packed
    paths = find(Path(folder), kind.suffixes, kind.what)
    return examined(paths, reader(paths))

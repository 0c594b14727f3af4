"""Sounds with captions from a folder, and the built-in procedural music.

A sample is {"wav": float32 (n,), "length": n, "text": str}; a built-in one has "labels" as well,
the place of each attribute's value in `tunes.ATTRIBUTES`. What is random about it is drawn from its
key; without a key it is the middle of the sound, and the first of its captions.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain
from math import ceil
from pathlib import Path
from random import Random
from sys import maxsize
from typing import Any, Protocol

import torch

from quintet.engine.errors import RunError
from quintet.engine.keys import Permutation
from quintet.engine.stream import CountPlan, Order, Request, order_of
from quintet.media import tunes
from quintet.media.audio import (
    SUFFIXES,
    AudioCaps,
    Samples,
    check_audio,
    length_at,
    probe,
    read_audio,
)
from quintet.media.errors import BadFile, printable
from quintet.media.folder import TEXT_KEYS, read_metadata, relative_name
from quintet.media.sidecars import read_beside, texts_beside, with_texts
from quintet.media.splits import (
    Builtin,
    InFolder,
    Key,
    Split,
    examined,
    examined_shards,
    find,
)
from quintet.music.config import MusicDataConfig

WHAT = "sounds"


class MusicData(Protocol):
    """What both kinds of data offer."""

    def __len__(self) -> int: ...
    def keyed(self, index: int, key: Key | None) -> dict[str, Any]: ...
    def name(self, index: int) -> str: ...
    def length(self, index: int) -> int: ...


def caps_of(config: MusicDataConfig) -> AudioCaps:
    """The limits of the configuration, as files are read by them."""
    return AudioCaps(config.max_bytes, config.max_seconds, config.max_channels, config.max_rate)


def _sample(wav: Samples, text: str) -> dict[str, Any]:
    return {"wav": torch.from_numpy(wav), "length": len(wav), "text": text}


# -- captions -------------------------------------------------------------------------------


class Captions:
    """What is said of each file: by the folder's metadata, or by a text file of the same name.

    Which files have a caption is known at once; text files are read when they are asked for.
    """

    def __init__(self, folder: Path, names: Sequence[str], longest: int) -> None:
        self.folder, self.cut = folder, Cut(longest)
        self._rows = {
            name: said for name, row in read_metadata(folder).items() if (said := _said(row))
        }
        self._beside = texts_beside(folder, names)
        if self._rows and not self._beside and not any(name in self._rows for name in names):
            reason = f"its metadata has a caption for none of its {len(names)} {WHAT}"
            raise BadFile(folder, reason, "give paths under the folder in the column `file_name`")

    def __contains__(self, name: str) -> bool:
        return name in self._rows or name in self._beside

    def of(self, name: str) -> list[str]:
        """At least one, none of them empty, each cut to the longest."""
        found = self._rows.get(name) or [self._read(self._beside[name])]
        return self.cut(found, name)

    def _read(self, name: str) -> str:
        return " ".join(read_beside(self.folder / name, "the caption of the sound").split())


class Cut:
    """Captions cut to the longest that is wanted, with a notice for the first."""

    def __init__(self, longest: int) -> None:
        self.longest, self._noted = longest, False

    def __call__(self, texts: Sequence[str], name: str) -> list[str]:
        return [self._one(text, name) for text in texts]

    def _one(self, text: str, name: str) -> str:
        if len(text) > self.longest and not self._noted:
            self._noted = True
            warnings.warn(
                f"{printable(name)}: its caption of {len(text):,} characters is cut to "
                f"text_length = {self.longest:,}; so are others, without a word",
                stacklevel=2,
            )
        return text[: self.longest]


def _said(row: Mapping[str, Any]) -> list[str]:
    """All captions of a row: a list of them, under whichever name, or one."""
    listed = (row[key] for key in ("texts", *TEXT_KEYS) if isinstance(row.get(key), list))
    given = next(listed, [row.get("text") or ""])
    texts = (" ".join(str(text).split()) for text in given if text)
    return [text for text in texts if text]


def described(folder: Path, names: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    """What is said of each file of a folder, for packing it into shards."""
    rows, beside = read_metadata(folder), texts_beside(folder, names)

    def row_of(name: str) -> dict[str, Any]:
        row = rows.get(name, {})
        if _said(row) or name not in beside:
            return row
        return {**row, "text": read_beside(folder / beside[name], "the caption of the sound")}

    return row_of


# -- folders --------------------------------------------------------------------------------


class MusicFolder(InFolder):
    """Sounds that have captions."""

    suffixes, what, lacking = SUFFIXES, WHAT, f"{WHAT} have no caption"

    def usable(self, names: list[str]) -> list[str]:
        self._captions = Captions(self.folder, names, self.config.text_length)
        return with_texts(self.folder, names, self._captions, self.config.max_missing, self.lacking)

    @cached_property
    def _cut(self) -> Cut:
        return Cut(self.config.text_length)

    def text(self, index: int) -> str:
        """The first of the sound's captions."""
        return self.texts(index)[0]

    def texts(self, index: int) -> list[str]:
        """All of them, without opening the sound."""
        if self.shards is None:
            return self._captions.of(self._names[index])
        name, said = self.name(index), _said(self.row(index))
        if not said:
            raise BadFile(name, "has no caption", "pack the folder again")
        return self._cut(said, name)

    def length(self, index: int) -> int:
        """Samples of what `keyed` gives, by the header; of a damaged file those of the longest."""
        config = self.config
        try:
            seconds = probe(self.path(index), caps_of(config)).seconds
        except BadFile:
            seconds = config.seconds
        return length_at(config.rate, seconds, config.seconds)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """A stretch of the sound and one of its captions, both by the key."""
        config = self.config
        said = self.texts(index)
        start = key.random("crop").random() if key is not None else 0.5
        text = key.random("caption").choice(said) if key is not None else said[0]
        wav = read_audio(
            self.path(index),
            rate=config.rate,
            seconds=config.seconds,
            start=start,
            caps=caps_of(config),
        )
        return _sample(wav, text)


def check(
    folder: Path | str,
    config: MusicDataConfig = MusicDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, str | None]]:
    """Each sound of a folder, read in full with its captions, and what is wrong with it or None."""
    every = replace(config, valid_limit=maxsize)
    packed = examined_shards(folder, SUFFIXES, lambda split: MusicFolder(folder, every, split, 0))
    if packed is not None:
        yield from packed
        return
    root = Path(folder)
    found = find(root, SUFFIXES, WHAT)
    captions = Captions(root, [relative_name(root, path) for path in found], config.text_length)

    def examine(path: Path) -> None:
        name = relative_name(root, path)
        if name not in captions:
            raise BadFile(path, "has no caption", "name it in metadata.jsonl, or write one beside")
        captions.of(name)
        check_audio(path, caps_of(config))

    yield from examined(found, examine)


# -- built-in data --------------------------------------------------------------------------


class BuiltinTunes(Builtin):
    """Procedural music with captions.

    Pieces for training last between `min_seconds` and `seconds`, each as long in every epoch;
    held-out ones last `seconds`.
    """

    what = "tune"

    def tune(self, index: int) -> tunes.Tune:
        """What the piece is made of."""
        return tunes.compose(self.number(index), self.seed)

    def text(self, index: int) -> str:
        """The piece's caption, in the plainest words."""
        return self.tune(index).caption

    def length(self, index: int) -> int:
        """Samples of the piece, without playing it."""
        return round(self._seconds(index) * self.config.rate)

    def _seconds(self, index: int) -> float:
        config: MusicDataConfig = self.config
        number = self.number(index)
        if self.split == "valid" or config.min_seconds == config.seconds:
            return config.seconds
        digest = blake2b(f"length/{self.seed}/{number}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "big") / 2**64
        return config.min_seconds + share * (config.seconds - config.min_seconds)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The piece, and a caption in words by the key, which may leave something unsaid."""
        tune = self.tune(index)
        text = tune.caption if key is None else self._words(tune, key.random("caption"))
        wav = tunes.play(tune, self._seconds(index), self.config.rate)
        return {**_sample(wav, text), "labels": torch.tensor(tune.labels)}

    def _words(self, tune: tunes.Tune, random: Random) -> str:
        if random.random() >= self.config.partial:
            return random.choice(tune.captions)
        names = random.sample(list(tunes.ATTRIBUTES), random.randint(1, len(tunes.ATTRIBUTES) - 1))
        return tunes.describe({name: tune.values[name] for name in names})


# -- batches --------------------------------------------------------------------------------


def padded_length(length: int, config: MusicDataConfig) -> int:
    """The length rounded up to one of `buckets` sizes, so that compiled models stay compiled.

    They are evenly spaced up to `seconds`; what is longer (a data set of one's own) keeps on.
    """
    step = ceil(config.seconds * config.rate / config.buckets)
    longest = round(config.seconds * config.rate)
    rounded = ceil(length / step) * step
    return min(rounded, longest) if length <= longest else rounded


def collate(
    items: Sequence[Mapping[str, Any]], config: MusicDataConfig | None = None
) -> dict[str, Any]:
    """One batch: wavs float32 (b, n) padded with 0, lengths int64 (b,), texts a list.

    n is the longest of them, rounded up to a bucket where there is a configuration. Where samples
    have them, labels int64 (b, attributes), and tokens int64 (b, t) padded with 0.
    """
    lengths = torch.tensor([len(item["wav"]) for item in items])
    longest = int(lengths.max())
    wavs = torch.zeros(len(items), padded_length(longest, config) if config else longest)
    for row, item in zip(wavs, items):
        row[: len(item["wav"])] = item["wav"]
    batch: dict[str, Any] = {
        "wavs": wavs,
        "lengths": lengths,
        "texts": [item["text"] for item in items],
    }
    if all("labels" in item for item in items):
        batch["labels"] = torch.stack([item["labels"] for item in items])
    tokens = [item["tokens"] for item in items if "tokens" in item]
    if tokens:
        if len(tokens) < len(items):
            raise TypeError("some captions are strings and some are ids; give one kind")
        batch["tokens"] = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return batch


class BucketPlan:
    """Global batches of equal count whose sounds are padded to about the same length.

    The keyed order is cut into windows of several global batches. Inside a window sounds go by
    their bucket, and the batches that this gives are shuffled again by key. A pure function of
    seed, position and the size of the global batch, however that is divided.
    """

    def __init__(
        self,
        buckets: Sequence[int],
        seed: int,
        batch_size: int,
        window: int = 16,
        order: Order | None = None,
    ):
        self.buckets, self.seed, self.batch_size, self.window = buckets, seed, batch_size, window
        self._order = CountPlan(len(buckets), seed, batch_size, order)
        self._cut = lru_cache(maxsize=2)(self._make_window)

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        size = count * self.batch_size
        if len(self.buckets) < size:
            raise RunError(
                f"the data has {len(self.buckets)} sounds, but one global batch takes {size}; "
                "lower --batch-size or add data"
            )
        # No more than an epoch, or a sound would meet itself in one batch.
        window = min(self.window, len(self.buckets) // size)
        turn, place = divmod(position // size, window)
        batch = self._cut(turn, window, count)[place]
        return [batch[i : i + self.batch_size] for i in range(0, size, self.batch_size)]

    def _make_window(self, turn: int, window: int, count: int) -> list[list[Request]]:
        size = count * self.batch_size
        taken = self._order.micro_batches(turn * window * size, window * count)
        ordered = sorted(chain(*taken), key=lambda request: self.buckets[request.sample])
        shuffle = Permutation(window, self.seed, turn, "buckets").many(0, window)
        return [ordered[i * size : (i + 1) * size] for i in shuffle]


def bucket_plan(source: Any, config: MusicDataConfig, seed: int, batch_size: int) -> BucketPlan:
    """Batches by length, where the data set says how long its sounds are."""
    count, order = len(source), order_of(source, seed)
    if config.buckets == 1 or not hasattr(source, "length"):
        return BucketPlan([0] * count, seed, batch_size, order=order)
    buckets = [padded_length(source.length(index), config) for index in range(count)]
    return BucketPlan(buckets, seed, batch_size, order=order)


def open_data(
    folder: Path | str | None, config: MusicDataConfig, split: Split, seed: int
) -> MusicData:
    """The sounds of a folder, or the built-in music where none is given.

    The seed chooses which of a folder's sounds are held out. The built-in music does not depend on
    it, so that runs with different seeds are measured on the same pieces.
    """
    if folder is None:
        return BuiltinTunes(config, split)
    return MusicFolder(folder, config, split, seed)

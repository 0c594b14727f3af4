"""Audio data with captions: folders, and the built-in procedural music.

A sample is {"wav": (n,), "length": n, "text": str}, the wav float32, or int16 in units of 1/32768;
a built-in one also has "labels", the index of each attribute's value in `tunes.ATTRIBUTES`. Crop
and caption are drawn from its key; without a key they are the centre crop and the first caption.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import ceil
from pathlib import Path
from random import Random
from sys import maxsize
from typing import Any

import torch

from quintet.engine.data.plans import LengthPlan, order_of
from quintet.engine.data.source import Source
from quintet.engine.data.wire import padded
from quintet.media.audio import (
    SUFFIXES,
    UNREAD,
    AudioCaps,
    Samples,
    Samples16,
    check_audio,
    length_at,
    probe,
    to_16_bits,
)
from quintet.media.errors import BadFile, printable
from quintet.media.folder import TEXT_KEYS, read_metadata, relative_name
from quintet.media.sidecars import read_beside, texts_beside, with_texts
from quintet.media.splits import Builtin, InFolder, Key, Problem, Split, check_files
from quintet.music import tunes
from quintet.music.config import MusicDataConfig
from quintet.shared.audio_cache import AudioCache
from quintet.shared.texts import FolderTexts

WHAT, CAPTION = "sounds", "the caption of the sound"
LANES = 8
"""The length of texts is a multiple of this: attention is faster."""


def _sample(wav: Samples | Samples16, text: str) -> dict[str, Any]:
    return {"wav": torch.from_numpy(wav), "length": len(wav), "text": text}


# -- captions -------------------------------------------------------------------------------


class Captions(FolderTexts[list[str]]):
    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        metadata = read_metadata(folder)
        rows = {name: texts for name, row in metadata.items() if (texts := _captions(row))}
        super().__init__(folder, names, rows, WHAT)

    def of(self, name: str) -> list[str]:
        """One or more non-empty captions."""
        return self.rows.get(name) or [" ".join(self.read(name, CAPTION).split())]

    def longest(self, names: Sequence[str]) -> int | None:
        """Bytes of the longest; None if some are in files of their own."""
        if any(name not in self.rows for name in names):
            return None
        texts = (text for name in names for text in self.rows[name])
        return max((len(text.encode("utf-8", "replace")) for text in texts), default=0)


def _captions(row: Mapping[str, Any]) -> list[str]:
    """All captions of a metadata row: a list under any of the text keys, or a single text."""
    lists = (row[key] for key in ("texts", *TEXT_KEYS) if isinstance(row.get(key), list))
    values = next(lists, [row.get("text") or ""])
    texts = (" ".join(str(value).split()) for value in values if value)
    return [text for text in texts if text]


def described(folder: Path, names: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    """Metadata row of each file of a folder, for packing it into shards."""
    rows, sidecars = read_metadata(folder), texts_beside(folder, names)

    def row_of(name: str) -> dict[str, Any]:
        row = rows.get(name, {})
        if _captions(row) or name not in sidecars:
            return row
        return {**row, "text": read_beside(folder / sidecars[name], CAPTION)}

    return row_of


# -- folders --------------------------------------------------------------------------------


class MusicFolder(InFolder):
    """Audio files with captions."""

    Config = MusicDataConfig

    suffixes, unread = SUFFIXES, UNREAD
    what, lacking = WHAT, f"{WHAT} have no caption"
    described = staticmethod(described)
    _warned = False

    def __init__(
        self, folder: Path | str, config: MusicDataConfig, split: Split, seed: int
    ) -> None:
        super().__init__(folder, config, split, seed)
        seconds = [self.extent(index) for index in range(len(self))]
        self.cache = AudioCache(seconds, AudioCaps.of(config), rate=config.sample_rate)

    def range_settings(self) -> object:
        return AudioCaps.of(self.config)

    def examine(self, path: Path) -> float:
        return probe(path, AudioCaps.of(self.config)).seconds

    def usable(self, names: list[str]) -> list[str]:
        self._captions = Captions(self.folder, names)
        return with_texts(self.folder, names, self._captions, self.config.max_missing, self.lacking)

    def text(self, index: int) -> str:
        return self.texts(index)[0]

    def texts(self, index: int) -> list[str]:
        """All captions, without opening the audio file."""
        name, most = self.name(index), self.config.text_length
        texts = self._captions.of(name) if self.shards is None else _captions(self.row(index))
        if not texts:
            raise BadFile(name, "has no caption", "pack the folder again")
        longest = max(map(len, texts))
        if longest > most and not self._warned:
            self._warned = True
            warnings.warn(
                f"{printable(name)}: its caption of {longest:,} characters is truncated to "
                f"text_length = {most:,}; further warnings are suppressed",
                stacklevel=2,
            )
        return [text[:most] for text in texts]

    def longest_text(self) -> int | None:
        """Bytes that no caption exceeds; None if that is unknown without reading files."""
        return None if self.shards is not None else self._captions.longest(self._names)

    def length(self, index: int) -> int:
        """Samples of the crop, from the file header; the maximum for an unreadable file."""
        config = self.config
        try:
            seconds = self.extent(index) or probe(self.path(index), AudioCaps.of(config)).seconds
        except BadFile:
            seconds = config.seconds
        return length_at(config.sample_rate, seconds, config.seconds)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """A crop and one of the captions, drawn from the key."""
        config, path, texts = self.config, self.path(index), self.texts(index)
        start = key.random("crop").random() if key is not None else 0.5
        text = key.random("caption").choice(texts) if key is not None else texts[0]
        wav = self.cache.read(
            index, path, rate=config.sample_rate, seconds=config.seconds, start=start
        )
        return _sample(wav, text)


def check(
    folder: Path | str,
    config: MusicDataConfig = MusicDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, Problem | None]]:
    """Every file of a folder, fully decoded with its captions, and its problem or None."""
    root = Path(folder)

    def reader(paths: list[Path]) -> Callable[[Path], None]:
        captions = Captions(root, [relative_name(root, path) for path in paths])

        def examine(path: Path) -> None:
            name = relative_name(root, path)
            if name not in captions:
                remedy = "add it to metadata.jsonl, or write a .txt file of the same name"
                raise BadFile(path, "has no caption", remedy)
            captions.of(name)
            check_audio(path, AudioCaps.of(config))

        return examine

    every = replace(config, valid_limit=maxsize, exclude_held_out=False)
    return check_files(MusicFolder, folder, every, reader)


# -- built-in data --------------------------------------------------------------------------


class BuiltinTunes(Builtin):
    """Procedural music with captions."""

    what = "tune"

    def tune(self, index: int) -> tunes.Tune:
        return tunes.compose(self.number(index), self.seed)

    def texts(self, index: int) -> list[str]:
        return [self.tune(index).captions[0]]

    def longest_text(self) -> int:
        return tunes.longest_caption()

    def length(self, index: int) -> int:
        """Samples of the clip, without synthesis."""
        return round(self._seconds(index) * self.config.sample_rate)

    def _seconds(self, index: int) -> float:
        """The same in every epoch."""
        config: MusicDataConfig = self.config
        if self.split == "valid" or config.min_seconds == config.seconds:
            return config.seconds
        number = self.number(index)
        digest = blake2b(f"length/{self.seed}/{number}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "big") / 2**64
        return config.min_seconds + share * (config.seconds - config.min_seconds)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """The clip, and a caption drawn from the key, which may omit attributes."""
        tune = self.tune(index)
        text = tune.captions[0]
        if key is not None:
            text = self._random_caption(tune, key.random("caption"))
        wav = tunes.play(tune, self._seconds(index), self.config.sample_rate)
        return {**_sample(to_16_bits(wav), text), "labels": torch.tensor(tune.labels)}

    def _random_caption(self, tune: tunes.Tune, random: Random) -> str:
        if random.random() >= self.config.partial_captions:
            return random.choice(tune.captions)
        names = random.sample(list(tunes.ATTRIBUTES), random.randint(1, len(tunes.ATTRIBUTES) - 1))
        return tunes.describe({name: tune.values[name] for name in names})


# -- batches --------------------------------------------------------------------------------


def padded_length(length: int, config: MusicDataConfig) -> int:
    """Length rounded up to one of `buckets` sizes, to avoid recompilation.

    Sizes are evenly spaced up to `seconds`; longer clips (custom data sets) use further multiples.
    """
    step = ceil(config.seconds * config.sample_rate / config.buckets)
    longest = round(config.seconds * config.sample_rate)
    rounded = ceil(length / step) * step
    return min(rounded, longest) if length <= longest else rounded


def collate(
    items: Sequence[Mapping[str, Any]], config: MusicDataConfig | None = None
) -> dict[str, Any]:
    """Batch of wavs (b, n) padded with 0, lengths int64 (b,) and a list of texts. The wavs are
    float32, or `Fractions` if those of all samples are int16.

    n is the maximum length, rounded up to a bucket if there is a configuration. Optional: labels
    int64 (b, attributes), and tokens int64 (b, t) padded with 0.
    """
    wavs = [item["wav"] for item in items]
    longest = max(map(len, wavs))
    batch: dict[str, Any] = {
        "wavs": padded(wavs, padded_length(longest, config) if config else longest),
        "lengths": torch.tensor([len(wav) for wav in wavs]),
        "texts": [item["text"] for item in items],
    }
    if all("labels" in item for item in items):
        batch["labels"] = torch.stack([item["labels"] for item in items])
    tokens = [item["tokens"] for item in items if "tokens" in item]
    if tokens:
        if len(tokens) < len(items):
            raise TypeError("some captions are strings and some are ids; use one kind")
        batch["tokens"] = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return batch


def text_length(sources: Sequence[Any], most: int) -> int:
    """Ids that each text is padded to: one length for a run, because each further length would be
    compiled and captured separately. All captions fit, where their length is known; `most` at
    most."""
    bounds: list[Any] = [s.longest_text() if hasattr(s, "longest_text") else None for s in sources]
    if not bounds or None in bounds:
        return most
    return min(most, ceil((1 + max(bounds)) / LANES) * LANES)  # 1: the start


def length_plan(source: Any, config: MusicDataConfig, seed: int, batch_size: int) -> LengthPlan:
    lengths = [0] * len(source)
    if config.buckets > 1:  # reads the header of every file
        lengths = [padded_length(source.length(i), config) for i in range(len(source))]
    return LengthPlan(lengths, seed, batch_size=batch_size, order=order_of(source, seed))


def open_data(
    folder: Path | str | None, config: MusicDataConfig, split: Split, seed: int
) -> Source:
    """Audio files of a folder, or the built-in music without one.

    The seed selects the validation split of a folder. The built-in music does not depend on it, so
    runs with different seeds are evaluated on the same clips.
    """
    if folder is None:
        return BuiltinTunes(config, split)
    return MusicFolder(folder, config, split, seed)


Folder = MusicFolder

"""Recordings with texts from a folder, and the built-in procedural speech.

A sample is {"audio": float32 (n,), "text": str}; a built-in one has "ends" as well, the moment in
seconds at which each character ends. Nothing about it is random: a recording is taken whole.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from sys import maxsize
from typing import Any, Protocol

import torch
from torch import Tensor

from quintet.engine.keys import Permutation
from quintet.engine.stream import Request
from quintet.media import voices
from quintet.media.audio import SUFFIXES, AudioCaps, check_audio, length_at, probe, read_audio
from quintet.media.errors import BadFile
from quintet.media.folder import read_metadata, relative_name
from quintet.media.splits import (
    Builtin,
    InFolder,
    Key,
    Split,
    examined,
    examined_shards,
    find,
)
from quintet.speech.characters import UNKNOWN, clean, encode, stack
from quintet.speech.config import SpeechDataConfig, VoiceBoxConfig, frames_in
from quintet.speech.transcripts import Transcripts

WHAT = "recordings"


class SpeechData(Protocol):
    """What both kinds of data offer."""

    def __len__(self) -> int: ...
    def keyed(self, index: int, key: Key | None) -> dict[str, Any]: ...
    def name(self, index: int) -> str: ...
    def size(self, index: int) -> tuple[int, int]: ...


def caps_of(config: SpeechDataConfig) -> AudioCaps:
    """The limits of the configuration, as files are read by them."""
    return AudioCaps(config.max_bytes, config.max_seconds, config.max_channels, config.max_rate)


class Fit:
    """How large recordings and texts may be, and the few sizes that batches come in.

    There are `buckets` of them. Their frames and their characters grow evenly, together.
    """

    def __init__(self, config: SpeechDataConfig, model: VoiceBoxConfig) -> None:
        self.config, self.model, self.count = config, model, config.buckets
        self.latents = model.features == "latents"
        longest = frames_in(config.max_seconds, model.rate, model.hop)
        self.frames = ceil(longest / config.buckets)
        self.tokens = ceil(config.text_length / config.buckets)

    def frames_of(self, length: int) -> int:
        return length if self.latents else 1 + length // self.model.hop

    def ids(self, text: str | None) -> Tensor:
        """Of a text, or of none."""
        return torch.tensor([UNKNOWN]) if text is None else encode(text, self.model.edges)

    def bucket(self, frames: int, tokens: int) -> int:
        """The smallest that holds both, from 1 to `count`; what is too large is in none."""
        return max(ceil(frames / self.frames), ceil(tokens / self.tokens), 1)

    def length(self, bucket: int) -> int:
        """Samples, or latents, of a padded recording."""
        frames = bucket * self.frames
        return frames if self.latents else frames * self.model.hop - 1

    def check(self, length: int, text: str) -> str:
        """The clean text; ValueError where recording and text do not go together."""
        config = self.config
        text = clean(text, config.alphabet)
        frames, tokens = self.frames_of(length), len(self.ids(text))
        if not self.latents and length < config.min_seconds * config.rate:
            raise ValueError(
                f"it lasts {length / config.rate:.3f} s, less than min_seconds ="
                f" {config.min_seconds:g}; remove it"
            )
        if tokens > config.text_length:
            raise ValueError(
                f"its text has {tokens} bytes, more than text_length = {config.text_length}; cut"
                " recording and text, or raise text_length"
            )
        if tokens > frames:
            raise ValueError(
                f"its text has {tokens} bytes, but it only {frames} frames; is it the right text?"
            )
        return text


# -- folders --------------------------------------------------------------------------------


class SpeechFolder(InFolder):
    """Recordings that have texts."""

    suffixes, what, lacking = SUFFIXES, WHAT, f"{WHAT} have no text"

    def __init__(self, folder: Path | str, fit: Fit, split: Split, seed: int) -> None:
        self.fit = fit
        super().__init__(folder, fit.config, split, seed)
        if self.window:
            reason = "asks for a window, but batches of speech are chosen out of the whole epoch"
            raise BadFile(folder, reason, "leave '#window=' away")

    def usable(self, names: list[str]) -> list[str]:
        self._said = Transcripts(self.folder, names)
        return self._said.kept(names, self.config.max_missing)

    def text(self, index: int) -> str:
        """What is said, as it is written."""
        if self.shards is not None:
            return super().text(index)
        return self._said.of(self._names[index])

    def size(self, index: int) -> tuple[int, int]:
        """Frames by the header, and characters; of what cannot be used, as large as can be."""
        config = self.config
        try:
            seconds = probe(self.path(index), caps_of(config)).seconds
            length = length_at(config.rate, seconds)
            text = self.fit.check(length, self.text(index))
        except ValueError:
            return self.fit.count * self.fit.frames, self.fit.count * self.fit.tokens
        return self.fit.frames_of(length), len(self.fit.ids(text))

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        path, text = self.path(index), self.text(index)
        wav = read_audio(path, rate=self.config.rate, caps=caps_of(self.config))
        try:
            text = self.fit.check(len(wav), text)
        except ValueError as error:
            reason, _, remedy = str(error).partition("; ")
            raise BadFile(path, reason, remedy) from None
        return {"audio": torch.from_numpy(wav), "text": text}


def described(folder: Path, names: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    """What is said of each file of a folder, for packing it into shards."""
    texts = Transcripts(folder, names)
    try:
        rows = read_metadata(folder)
    except BadFile:  # a table as LJSpeech has it, or `texts` would have refused it
        rows = {}
    return lambda name: {**rows.get(name, {}), "text": texts.of(name) if name in texts else ""}


def check(
    folder: Path | str,
    config: SpeechDataConfig = SpeechDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, str | None]]:
    """Each recording of a folder, read in full with its text, and what is wrong with it or None."""
    fit = Fit(config, VoiceBoxConfig(rate=config.rate))
    every = Fit(replace(config, valid_limit=maxsize), fit.model)
    packed = examined_shards(folder, SUFFIXES, lambda split: SpeechFolder(folder, every, split, 0))
    if packed is not None:
        yield from packed
        return
    root = Path(folder)
    found = find(root, SUFFIXES, WHAT)
    texts = Transcripts(root, [relative_name(root, path) for path in found])

    def examine(path: Path) -> None:
        name = relative_name(root, path)
        if name not in texts:
            raise BadFile(path, "has no text", "name it in metadata.jsonl, or write one beside")
        info = check_audio(path, caps_of(config))
        try:
            fit.check(length_at(config.rate, info.seconds), texts.of(name))
        except BadFile:
            raise
        except ValueError as error:
            reason, _, remedy = str(error).partition("; ")
            raise BadFile(path, reason, remedy) from None

    yield from examined(found, examine)


# -- built-in data --------------------------------------------------------------------------


class BuiltinVoices(Builtin):
    """Procedural speech with transcripts, none of it longer than the configuration allows."""

    what = "utterance"

    def __init__(self, fit: Fit, split: Split) -> None:
        super().__init__(fit.config, split)
        self.fit = fit

    def utterance(self, index: int) -> voices.Utterance:
        """The first that fits of those that stand for this number."""
        for attempt in range(1000):
            said = voices.compose(self.number(index) + attempt * 2**40, self.seed)
            short = said.seconds <= self.config.max_seconds
            if short and len(self.fit.ids(said.text)) <= self.config.text_length:
                return said
        raise ValueError(
            f"built-in speech is longer than max_seconds = {self.config.max_seconds:g} or"
            f" text_length = {self.config.text_length}; raise them"
        )

    def text(self, index: int) -> str:
        return self.utterance(index).text

    def size(self, index: int) -> tuple[int, int]:
        said = self.utterance(index)
        length = round(said.seconds * self.config.rate)
        return self.fit.frames_of(length), len(self.fit.ids(said.text))

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        said = self.utterance(index)
        wav = torch.from_numpy(voices.speak(said, self.config.rate))
        ends = torch.tensor([mark.end for mark in said.characters])
        return {"audio": wav, "text": said.text, "ends": ends}


# -- batches --------------------------------------------------------------------------------


def collate(items: Sequence[Mapping[str, Any]], fit: Fit) -> dict[str, Any]:
    """One batch: audio (b, n) or latents (b, t, c) padded with 0 to a bucket, and lengths (b,);
    ids (b, m) padded with 0, and tokens (b,); texts; which recordings fill all of their frames;
    and ends (b, m) where all samples have them.
    """
    rows = [item["ids"] if "ids" in item else fit.ids(item["text"]) for item in items]
    lengths = torch.tensor([len(item["audio"]) for item in items])
    sizes = [fit.frames_of(length) for length in lengths.tolist()]
    given = fit.model.text == "given"
    bucket = max(fit.bucket(t, 0 if given else len(ids)) for t, ids in zip(sizes, rows))
    ids, tokens = stack(rows, bucket * (fit.frames if given else fit.tokens))
    first = items[0]["audio"]
    audio = torch.zeros(len(items), fit.length(bucket), *first.shape[1:])
    for row, item in zip(audio, items):
        row[: len(item["audio"])] = item["audio"]
    batch: dict[str, Any] = {"audio": audio, "lengths": lengths, "ids": ids, "tokens": tokens}
    batch["texts"] = [item["text"] for item in items]
    batch["full"] = [size == bucket * fit.frames for size in sizes]
    if not fit.model.edges and all("ends" in item for item in items):
        batch["ends"] = torch.zeros(ids.shape)
        for row, item in zip(batch["ends"], items):
            row[: len(item["ends"])] = item["ends"]
    return batch


class FramePlan:
    """Global batches of about equal work: recordings of one bucket, the more the shorter they are.

    In an epoch each bucket is cut into whole batches; what is left of it goes on to the next
    larger one, and the last batch is filled up from the next epoch. Then batches are shuffled by
    key. So there are no more shapes than buckets. A pure function of seed, buckets and the size of
    the global batch, however that is divided.
    """

    def __init__(self, buckets: Sequence[int], largest: int, seed: int, batch_size: int) -> None:
        self.buckets, self.largest, self.seed = buckets, largest, seed
        self.batch_size = batch_size
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def samples(self, bucket: int, full: int) -> int:
        """How many recordings of a bucket make a global batch of `full` of the largest."""
        count = max(full, full * self.largest // bucket)
        return count if count < 16 else count // 8 * 8  # so that it can be divided

    def micro_batches(self, position: int, count: int) -> list[list[Request]]:
        full = self.batch_size * count
        _, starts = self._epoch(0, full)
        epoch, offset = divmod(position, starts[-1])
        batches, starts = self._epoch(epoch, full)
        batch = batches[bisect_right(starts, offset) - 1]
        cuts = [len(batch) * part // count for part in range(count + 1)]
        return [batch[begin:end] for begin, end in pairwise(cuts)]

    def _make_epoch(self, epoch: int, full: int) -> tuple[list[list[Request]], list[int]]:
        size = len(self.buckets)
        groups: dict[int, list[Request]] = {}
        for sample in Permutation(size, self.seed, epoch).many(0, size):
            groups.setdefault(self.buckets[sample], []).append(Request(epoch, sample))
        waiting: list[Request] = []
        batches: list[list[Request]] = []
        taken = full
        for bucket in sorted(groups):
            waiting = waiting + groups[bucket]
            taken = self.samples(bucket, full)
            whole = len(waiting) // taken * taken
            batches += [waiting[i : i + taken] for i in range(0, whole, taken)]
            waiting = waiting[whole:]
        if waiting:
            more = (Request(epoch + 1 + i // size, i % size) for i in range(taken - len(waiting)))
            batches.append([*waiting, *more])
        order = Permutation(len(batches), self.seed, epoch, "batches").many(0, len(batches))
        batches = [batches[i] for i in order]
        return batches, [0, *accumulate(map(len, batches))]


def frame_plan(source: Any, fit: Fit, seed: int, batch_size: int) -> FramePlan:
    """Batches by length, where the data set says how long its recordings are."""
    sized = hasattr(source, "size")
    sizes = [source.size(index) if sized else None for index in range(len(source))]
    buckets = [min(fit.bucket(*size), fit.count) if size else fit.count for size in sizes]
    return FramePlan(buckets, fit.count, seed, batch_size)


def open_data(folder: Path | str | None, fit: Fit, split: Split, seed: int) -> SpeechData:
    """The recordings of a folder, or the built-in speech where none is given.

    The seed chooses which of a folder's recordings are held out. The built-in speech does not
    depend on it, so that runs with different seeds are measured on the same utterances.
    """
    if folder is None:
        return BuiltinVoices(fit, split)
    return SpeechFolder(folder, fit, split, seed)

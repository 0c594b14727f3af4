"""Data of the speech room: folders of recordings with texts, and the built-in procedural speech.

A sample is {"audio": (n,), "text": str}, the audio float32, or int16 in units of 1/32768; a
built-in one also has "ends", the times in seconds at which characters end. There is no
augmentation: recordings are used whole.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.config import ConfigError, require
from quintet.engine.data.plans import LengthPlan
from quintet.engine.data.shared_rows import SharedRows
from quintet.engine.data.source import Source
from quintet.engine.data.wire import padded
from quintet.media.audio import (
    MISSING,
    SUFFIXES,
    UNREAD,
    AudioCaps,
    Samples,
    Samples16,
    check_audio,
    length_at,
    probe,
    read_audio,
    to_16_bits,
    trimmed,
)
from quintet.media.errors import BadFile, OutOfRange
from quintet.media.folder import listing, read_metadata, relative_name
from quintet.media.ranges import Outside, within
from quintet.media.sidecars import REMEDY
from quintet.media.splits import Builtin, InFolder, Key, Problem, Split, check_files
from quintet.shared.corpora import Cut, Row, read_corpus, segment_tables
from quintet.shared.transcripts import Transcripts
from quintet.speech import voices
from quintet.speech.config import SpeechDataConfig
from quintet.speech.text.characters import UNKNOWN, Unfit, clean, stack
from quintet.speech.text.phonemes import require_language
from quintet.speech.text.spelling import num_ids, to_ids
from quintet.speech.voicebox.config import VoiceBoxConfig

WHAT = "recordings"
LONGEST = 86_400.0
"""Seconds of a recording that is cut into segments."""


class Buckets:
    """Limits of recordings and texts, and the padded sizes of batches.

    Bucket k of `count` holds up to k * `frames` frames and k * `tokens` characters.
    """

    def __init__(self, config: SpeechDataConfig, model: VoiceBoxConfig) -> None:
        self.config, self.model, self.count = config, model, config.buckets
        self.latents = model.features == "latents"
        if model.phonemes:
            try:
                require_language(model.phonemes)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        longest = 1 + ceil(config.max_seconds * model.sample_rate) // model.hop_length
        self.frames = ceil(longest / config.buckets)
        self.tokens = ceil(config.text_length / config.buckets)

    @property
    def largest(self) -> tuple[int, int]:
        """Frames and characters of the largest bucket."""
        return self.count * self.frames, self.count * self.tokens

    def num_frames(self, length: int) -> int:
        return length if self.latents else 1 + length // self.model.hop_length

    def ids(self, text: str | None, language: str = "") -> Tensor:
        """Ids (n,) of a text; one UNKNOWN without a text."""
        if text is None or self.model.text == "none":
            return torch.tensor([UNKNOWN])
        return to_ids(text, self.model, language)

    def num_tokens(self, text: str, language: str = "") -> int:
        return 1 if self.model.text == "none" else num_ids(text, self.model, language)

    def index(self, frames: int, tokens: int) -> int:
        """The smallest bucket that holds both, from 1; above `count` for a sample too large."""
        return max(ceil(frames / self.frames), ceil(tokens / self.tokens), 1)

    def length(self, bucket: int) -> int:
        """Padded length of a bucket, in samples or latents."""
        frames = bucket * self.frames
        return frames if self.latents else frames * self.model.hop_length - 1

    def check(self, length: int, text: str, language: str = "") -> str:
        """The normalised text; ValueError for a recording or text outside of the limits."""
        config = self.config
        text = text if self.model.text == "none" else clean(text)
        frames, tokens = self.num_frames(length), self.num_tokens(text, language)
        seconds, unit = length / config.sample_rate, "phonemes" if self.model.phonemes else "bytes"
        if not self.latents and seconds < config.min_seconds:
            limit = f"less than min_seconds = {config.min_seconds:g}"
            raise Unfit(f"it is {seconds:.3f} s long", limit, "remove it", seconds)
        if not self.latents and length > ceil(config.max_seconds * config.sample_rate):
            limit = f"more than max_seconds = {config.max_seconds:g}"
            raise Unfit(f"it lasts {seconds:,.1f} s", limit, "cut it or raise it", seconds)
        if tokens > config.text_length:
            limit = f"more than text_length = {config.text_length}"
            remedy = "shorten recording and text, or raise text_length"
            raise Unfit(f"its text has {tokens} {unit}", limit, remedy, tokens)
        if tokens > frames:
            reason = f"its text has {tokens} {unit} for {frames} frames"
            raise Unfit(reason, "more than one per frame", "is it the right text?")
        return text


# -- folders --------------------------------------------------------------------------------


WITHOUT = "or train on sound alone: --model.text none, VoiceBox(text='none')"


class SpeechFolder(InFolder):
    """Recordings that have texts; all of them for a model without texts."""

    Config = SpeechDataConfig

    suffixes, unread = SUFFIXES, UNREAD
    what, lacking = WHAT, f"{WHAT} have no text"

    def __init__(self, folder: Path | str, buckets: Buckets, split: Split, seed: int) -> None:
        self.buckets, self._caps = buckets, AudioCaps.of(buckets.config)
        self._transcripts: Transcripts | None = None
        if buckets.model.text == "none":
            self.lacking = ""
        try:
            super().__init__(folder, buckets.config, split, seed)
        except BadFile as error:
            if error.remedy != REMEDY:
                raise
            raise BadFile(error.path, error.reason, f"{REMEDY}; {WITHOUT}") from None
        longest = ceil(buckets.config.max_seconds * buckets.config.sample_rate)
        self._wavs = SharedRows([1 + 2 * longest] * len(self))
        """Sounds of earlier epochs: whether they are float32, and their bytes."""
        if self.window:
            reason = "sets a shuffle window, but batches by length need the whole epoch"
            raise BadFile(folder, reason, "drop '#window='")

    def usable(self, names: list[str]) -> list[str]:
        if self.buckets.model.text != "none":
            self._transcripts = Transcripts(self.folder, names)
            names = self._transcripts.samples(names)
            names = self._transcripts.with_text(names, self.config.max_missing)
            self._require_languages(self._transcripts, names)
        outside = {name: limit for name in names if (limit := self._outside(name))}
        return within(self.folder, names, outside, WHAT)

    def _require_languages(self, transcripts: Transcripts, names: Sequence[str]) -> None:
        """A language that nobody speaks is an error of the metadata, not of each recording."""
        if not self.buckets.model.phonemes:
            return
        for language in {transcripts.about(name).language for name in names} - {""}:
            try:
                require_language(language)
            except ValueError as error:
                raise BadFile(self.folder, f"its metadata is wrong: {error}") from None

    def range_settings(self) -> object:
        # Recordings that have segments may be long; the others are checked with their texts.
        if self.buckets.model.text != "none" and segment_tables(self.folder, self._listed.names):
            self._caps = self._caps._replace(max_seconds=LONGEST)
        return self._caps

    def examine(self, path: Path) -> float:
        return probe(path, self._caps).seconds

    def _seconds(self, name: str) -> float:
        """Seconds by the header or by the table of segments; 0 if unknown."""
        cut = self._cut(name)
        return cut.end - cut.start if cut else self._extents.get(name, 0.0)

    def _cut(self, name: str) -> Cut | None:
        return self._transcripts.cuts.get(name) if self._transcripts else None

    def file_of(self, name: str) -> str:
        cut = self._cut(name)
        return cut.file if cut else name

    def extent(self, index: int) -> float:
        return 0.0 if self.shards is not None else self._seconds(self._names[index])

    def _outside(self, name: str) -> Outside | None:
        """Why the recipe takes no recording with such a length and text."""
        seconds = self._seconds(name)
        if not seconds:
            return None
        length = length_at(self.config.sample_rate, seconds)
        try:
            text = self._transcripts.of(name) if self._transcripts else ""
            language = self._transcripts.about(name).language if self._transcripts else ""
            _checked_text(self.buckets, self.folder / name, length, text, language)
        except BadFile as error:
            return Outside.of(error) if isinstance(error, OutOfRange) else None
        return None

    def text(self, index: int) -> str:
        """The transcript, as written."""
        if self.buckets.model.text == "none":
            return ""
        if self._transcripts is None:
            return super().text(index)
        return self._transcripts.of(self._names[index])

    def texts(self, index: int) -> list[str]:
        """The transcript, and its language, by which it is spoken."""
        reads = self.buckets.model.text != "none"
        return [self.text(index), self.about(index).language] if reads else []

    def about(self, index: int) -> Row:
        """Who speaks, in which language, by the metadata; empty if it does not say."""
        if self.shards is not None:
            return Row.of(self.row(index))
        return self._transcripts.about(self._names[index]) if self._transcripts else Row()

    def size(self, index: int) -> tuple[int, int]:
        """Frames by the header, and characters; the largest bucket for an unusable sample."""
        config, buckets = self.config, self.buckets
        try:
            seconds = self.extent(index) or probe(self.path(index), self._caps).seconds
            length = length_at(config.sample_rate, seconds)
            language = self.about(index).language
            text = buckets.check(length, self.text(index), language)
        except ValueError:
            return buckets.largest
        return buckets.num_frames(length), buckets.num_tokens(text, language)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        wav, language = self._wav(index), self.about(index).language
        text = _checked_text(self.buckets, self.path(index), len(wav), self.text(index), language)
        return {"audio": torch.from_numpy(wav), "text": text, "language": language}

    def _wav(self, index: int) -> Samples | Samples16:
        row = self._wavs.get(index)
        if row is not None:
            numbers = row[1:].copy()
            return numbers.view(np.float32) if row[0] else numbers
        wav = self._read(index)
        self._wavs.put(index, np.concatenate(([wav.dtype == np.float32], wav.view(np.int16))))
        return wav

    def _read(self, index: int) -> Samples | Samples16:
        path, rate = self.path(index), self.config.sample_rate
        cut = self._cut(self._names[index]) if self.shards is None else None
        if cut is None:
            wav = read_audio(path, rate=rate, caps=self._caps, narrow=True)
        else:
            wav = _read_cut(path, cut, rate, self._caps)
        return trimmed(wav, rate, self.config.trim) if self.config.trim else wav


def _read_cut(path: Path, cut: Cut, rate: int, caps: AudioCaps) -> Samples | Samples16:
    total, seconds = probe(path, caps).seconds, cut.end - cut.start
    if cut.end > total + MISSING:
        reason = f"ends at {total:.1f} s, before its segment from {cut.start:g} to {cut.end:g} s"
        raise BadFile(path, reason, "give the times of segments in seconds, not milliseconds")
    start = min(1.0, cut.start / (total - seconds)) if total > seconds else 0.0
    return read_audio(path, rate=rate, seconds=seconds, start=start, caps=caps, narrow=True)


def _checked_text(buckets: Buckets, path: Path, length: int, text: str, language: str = "") -> str:
    try:
        return buckets.check(length, text, language)
    except Unfit as error:
        raise OutOfRange(path, *error.args) from None
    except ValueError as error:
        reason, _, remedy = str(error).partition("; ")
        raise BadFile(path, reason, remedy) from None


def described(folder: Path, names: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    """Metadata row of each file of a folder, for packing it into shards."""
    texts = Transcripts(folder, names)
    rows = {} if texts.corpus.published else read_metadata(folder)

    def describe(name: str) -> dict[str, Any]:
        if name in texts.tables:
            parts = [cut.row.text for cut in texts.cuts.values() if cut.file == name]
            return {"text": " ".join(parts), "segments": len(parts)}
        about = texts.about(name)
        known = {"speaker": about.speaker, "language": about.language}
        row = {key: value for key, value in known.items() if value} | rows.get(name, {})
        return {**row, "text": texts.of(name) if name in texts else ""}

    return describe


def layout(folder: Path) -> str | None:
    """The published layout of a folder of recordings, for the doctor; None for any other."""
    try:
        corpus = read_corpus(folder, listing(folder, SUFFIXES).names)
    except BadFile:
        return None
    return corpus.layout if corpus.published else None


def summary(folder: Path, names: Sequence[str], seconds: float) -> Iterator[str]:
    """Lines of the doctor about the recordings that can be used."""
    texts = Transcripts(folder, names)
    samples = texts.samples(names)
    about = [texts.about(name) for name in samples]
    languages = Counter(row.language for row in about)
    by, kinds = "named", {row.speaker for row in about} - {""}
    if not kinds:
        by, kinds = "by folder", {name.rpartition("/")[0] for name in samples}
    yield f"layout: {texts.corpus.layout}; {len(kinds)} speakers {by}; {seconds / 3600:.2f} hours"
    if set(languages) - {""}:
        counts = (f"{name or 'not named'} {count:,}" for name, count in languages.most_common())
        yield f"languages: {', '.join(counts)}"
    if texts.tables:
        yield f"segments: {len(texts.cuts):,} in {len(texts.tables):,} recordings"


def check(
    folder: Path | str,
    config: SpeechDataConfig = SpeechDataConfig(),  # noqa: B008
) -> Iterator[tuple[Path, Problem | None]]:
    """Each recording of a folder, read in full, with its defect or None."""
    every = replace(config, valid_limit=maxsize, exclude_held_out=False)
    buckets = Buckets(every, VoiceBoxConfig(sample_rate=config.sample_rate))
    root = Path(folder)

    def reader(paths: list[Path]) -> Callable[[Path], None]:
        texts = Transcripts(root, [relative_name(root, path) for path in paths])

        def examine(path: Path) -> None:
            name = relative_name(root, path)
            if name in texts.tables:
                check_segments(path, [cut for cut in texts.cuts.values() if cut.file == name])
                return
            if name in texts.corpus.unlisted:
                reason, remedy = "is not listed", "edit its table to use them"
                limit = f"not listed by {texts.corpus.layout}, or a second microphone"
                raise OutOfRange(path, reason, limit, remedy)
            if name not in texts:
                raise BadFile(path, "has no text", "add it to metadata.jsonl, or as a .txt file")
            seconds = check_audio(path, AudioCaps.of(config)).seconds
            _checked_text(buckets, path, length_at(config.sample_rate, seconds), texts.of(name))

        return examine

    def check_segments(path: Path, cuts: Sequence[Cut]) -> None:
        """An error if none can be used; training names those that cannot."""
        caps = AudioCaps.of(config)._replace(max_seconds=LONGEST)
        check_audio(path, caps)
        problem = BadFile(path, "has no segment with a text", "fill in its table, or remove it")
        for cut in cuts:
            try:
                wav = _read_cut(path, cut, config.sample_rate, caps)
                _checked_text(buckets, path, len(wav), cut.row.text)
            except BadFile as error:
                problem = error
            else:
                return
        raise problem

    return check_files(SpeechFolder, folder, buckets, reader)


# -- built-in data --------------------------------------------------------------------------


class BuiltinVoices(Builtin):
    """Procedural speech with transcripts, within the limits of the configuration."""

    what = "utterance"

    def __init__(self, buckets: Buckets, split: Split) -> None:
        super().__init__(buckets.config, split)
        self.buckets, model = buckets, buckets.model
        plain = model.features == "mel" and model.text != "given"
        require(plain, "data", None, "set: built-in speech has log-mels, and no ids per frame")
        remedy = "set: built-in speech is in no language of espeak"
        require(model.phonemes is None, "data", None, remedy)
        longest = round(self.config.max_seconds * self.config.sample_rate)
        self.wavs = SharedRows([longest] * len(self))
        """Sounds of earlier epochs: to synthesise one takes milliseconds, to copy it none."""

    def utterance(self, index: int) -> voices.Utterance:
        return voices.compose(self._outline(index)[0], self.seed)

    def _outline(self, index: int) -> tuple[int, str, float]:
        """Number, text and seconds of the first utterance of this index within the limits."""
        for attempt in range(1000):
            number = self.number(index) + attempt * 2**40
            text, seconds = voices.outline(number, self.seed)
            tokens = self.buckets.num_tokens(text)
            if seconds <= self.config.max_seconds and tokens <= self.config.text_length:
                return number, text, seconds
        raise ValueError(
            f"built-in speech is longer than max_seconds = {self.config.max_seconds:g} or"
            f" text_length = {self.config.text_length}; raise them"
        )

    def text(self, index: int) -> str:
        return self._outline(index)[1]

    def size(self, index: int) -> tuple[int, int]:
        _, text, seconds = self._outline(index)
        length = round(seconds * self.config.sample_rate)
        return self.buckets.num_frames(length), self.buckets.num_tokens(text)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        utterance = self.utterance(index)
        wav = self.wavs.get(index)
        if wav is None:
            sound = voices.speak(utterance, self.config.sample_rate)
            wav = self.wavs.put(index, to_16_bits(sound))
        ends = torch.tensor([mark.end for mark in utterance.characters])
        return {"audio": torch.tensor(wav), "text": utterance.text, "ends": ends}


# -- batches --------------------------------------------------------------------------------


def collate(items: Sequence[Mapping[str, Any]], buckets: Buckets) -> dict[str, Any]:
    """One batch, padded with 0 to a bucket: audio (b, n) or latents (b, t, c), and lengths (b,);
    ids (b, m), and num_tokens (b,); texts; whether each recording is unpadded; and ends (b, m) if
    all samples have them. Audio is float32, or `Fractions` if that of all samples is int16.
    """
    rows = [
        item["ids"] if "ids" in item else buckets.ids(item["text"], item.get("language", ""))
        for item in items
    ]
    lengths = torch.tensor([len(item["audio"]) for item in items])
    frames = [buckets.num_frames(length) for length in lengths.tolist()]
    per_frame = buckets.model.text == "given"
    bucket = max(buckets.index(t, 0 if per_frame else len(ids)) for t, ids in zip(frames, rows))
    ids, num_tokens = stack(rows, bucket * (buckets.frames if per_frame else buckets.tokens))
    audio = padded([item["audio"] for item in items], buckets.length(bucket))
    batch: dict[str, Any] = {"audio": audio, "lengths": lengths}
    batch |= {"ids": ids, "num_tokens": num_tokens}
    batch["texts"] = [item["text"] for item in items]
    batch["unpadded"] = [count == bucket * buckets.frames for count in frames]
    by_character = buckets.model.text == "learned" and not buckets.model.edges
    if by_character and all("ends" in item for item in items):
        batch["ends"] = padded([item["ends"] for item in items], ids.shape[1])
    return batch


def length_plan(source: Any, buckets: Buckets, seed: int, batch_size: int) -> LengthPlan:
    """Batches of about equal padded length."""
    lengths = [min(buckets.index(*source.size(i)), buckets.count) for i in range(len(source))]
    return LengthPlan(lengths, seed, budget=batch_size * buckets.count)


def open_data(folder: Path | str | None, buckets: Buckets, split: Split, seed: int) -> Source:
    """The recordings of a folder, or the built-in speech without one.

    The seed selects the validation recordings of a folder. The built-in speech does not depend on
    it, so runs with different seeds are evaluated on the same utterances.
    """
    if folder is None:
        return BuiltinVoices(buckets, split)
    return SpeechFolder(folder, buckets, split, seed)


SpeechFolder.described = staticmethod(described)
SpeechFolder.layout = staticmethod(layout)
SpeechFolder.summary = staticmethod(summary)
Folder = SpeechFolder

"""Segments of the sounds of a folder, without texts. A sample is {"audio": (n,), or (n, channels)},
float32, or int16 in units of 1/32768; its segment is drawn from the key, and without a key it is
the middle, for validation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.data.shared_rows import SharedRows
from quintet.engine.data.wire import padded
from quintet.media.audio import SUFFIXES, UNREAD, AudioCaps, Samples, probe, to_16_bits
from quintet.media.splits import Builtin, InFolder, Key, Split
from quintet.shared.audio_cache import AudioCache
from quintet.shared.config import SegmentDataConfig
from quintet.shared.own_data import OwnData, as_sound


class Segments:
    """Lengths of segments, and where they begin."""

    def __init__(self, train: int, valid: int, rate: int, channels: int = 1) -> None:
        self.train, self.valid, self.rate, self.channels = train, valid, rate, channels

    def length(self, key: Key | None) -> int:
        """The most samples of a segment."""
        return self.valid if key is None else self.train

    def start(self, key: Key | None) -> float:
        """Relative position among those that fit, from 0 to 1."""
        return 0.5 if key is None else key.random("segment").random()

    def cut(self, audio: Tensor, key: Key | None) -> Tensor:
        """A segment of a sound (n, …)."""
        count = self.length(key)
        first = round(self.start(key) * max(0, len(audio) - count))
        return audio[first : first + count]


class Recordings(InFolder):
    """Segments of the recordings of a folder; texts are not read."""

    Config = SegmentDataConfig

    suffixes, unread = SUFFIXES, UNREAD
    what = "recordings"

    def __init__(
        self,
        folder: Path | str,
        config: SegmentDataConfig,
        split: Split,
        seed: int,
        segments: Segments,
    ) -> None:
        self.segments = segments
        super().__init__(folder, config, split, seed)
        seconds = [self.extent(index) for index in range(len(self))]
        rate = None if config.speed else segments.rate
        self.cache = AudioCache(seconds, self._caps, segments.channels, rate)

    def usable(self, names: list[str]) -> list[str]:
        return names

    def range_settings(self) -> object:
        return self._caps

    def examine(self, path: Path) -> float:
        return probe(path, self._caps).seconds

    @property
    def _caps(self) -> AudioCaps:
        return AudioCaps.of(self.config)

    def text(self, index: int) -> str:
        return ""

    def rate(self, key: Key | None) -> int:
        """What is read at another rate, and taken for the right one, is faster or slower. Hundreds
        of Hz, because resampling to odd rates takes twice as long."""
        if key is None or not self.config.speed:
            return self.segments.rate
        power = key.random("speed").uniform(-1, 1)
        return round(self.segments.rate * (1 + self.config.speed) ** power, -2)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        segments, rate = self.segments, self.rate(key)
        wav = self.cache.read(
            index,
            self.path(index),
            rate=rate,
            seconds=segments.length(key) / rate,
            start=segments.start(key),
            silent=key is not None,  # a pause; validation has no use for a silent recording
        )
        return {"audio": torch.from_numpy(wav)}


LONGEST = 4.0
"""Seconds of a built-in sound, to which longer ones are cut."""


class BuiltinSegments(Builtin):
    """Segments of procedural sounds."""

    def __init__(self, config: SegmentDataConfig, split: Split, segments: Segments) -> None:
        super().__init__(config, split)
        self.segments, self.longest = segments, round(LONGEST * segments.rate)
        self.wavs = SharedRows([self.longest] * len(self))

    def sound(self, number: int) -> Samples:
        """(n,), of any length."""
        raise NotImplementedError

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        wav = self.wavs.get(index)
        if wav is None:
            sound = to_16_bits(self.sound(self.number(index)))
            wav = self.wavs.put(index, sound[: self.longest])
        audio = self.segments.cut(torch.tensor(wav), key)
        channels = self.segments.channels
        return {"audio": audio if channels == 1 else audio[:, None].expand(-1, channels)}


class OwnSounds(OwnData):
    """A user's own data set: items are sounds (n,) or (channels, n) at the rate of the model,
    tuples that begin with one, or dicts."""

    fields = {"audio": "audio", "wav": "audio", "wave": "audio"}
    strict = False
    items = "give a sound, a tuple that begins with one, or a dict with 'audio'"

    def __init__(self, dataset: Any, segments: Segments):
        super().__init__(dataset)
        self.segments = segments

    def positional(self, values: Sequence[Any], where: str) -> list[tuple[str, Any]]:
        return [("audio", values[0])]

    def sample(self, fields: dict[str, Any], where: str, key: Key | None) -> dict[str, Any]:
        if "audio" not in fields:
            raise TypeError(f"{where} has no audio; {self.items}")
        sound = as_sound(fields["audio"], self.segments.channels, f"the audio of {where}")
        return {"audio": self.segments.cut(sound, key)}


def check_peak(sounds: Tensor) -> None:
    peak = sounds.abs().max().item()
    if not peak <= 8:
        raise ValueError(
            f"sounds have a peak of {peak:.3g}, but the model expects -1 to 1; "
            "divide 16-bit integers by 32768"
        )


def collate(items: Sequence[Mapping[str, Any]], segments: Segments) -> dict[str, Any]:
    """Sounds (b, n, …), padded to the length of training or validation, and lengths (b,)."""
    lengths = torch.tensor([len(item["audio"]) for item in items])
    size = segments.train if int(lengths.max()) <= segments.train else segments.valid
    return {"audio": padded([item["audio"] for item in items], size), "lengths": lengths}

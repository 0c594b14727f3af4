"""A cache of decoded audio files, for segments of short ones.

To open a recording of five seconds and to decode half a second of it takes four times as long as
to resample the half second, which takes four times as long as to copy it. Whether a file is decoded
as a whole is decided by the data alone, so that a sample does not depend on the memory of a
machine: decoders that seek are not exact.
"""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np

from quintet.engine.data.shared_rows import SharedRows
from quintet.media import audio
from quintet.media.audio import decode_audio

SHORT = 30.0
"""Seconds of a file that is decoded as a whole."""
MOST_SECONDS = 24 * 3600.0
"""Limit for all short files; beyond it, all are read by segments."""
HIGHEST_RATE = 48_000
"""Highest sample rate in the cache."""


class AudioCache:
    """The audio of a folder, in memory that workers share if there is enough of it."""

    def __init__(
        self,
        seconds: Sequence[float],
        caps: audio.AudioCaps,
        channels: int = 1,
        rate: int | None = None,
    ) -> None:
        """`seconds` of each file, 0 if unknown. With `rate`, at which all segments are then read,
        short files are resampled as a whole; without, each segment is."""
        self.caps, self.channels, self.rate = caps, channels, rate
        short = [each if each <= SHORT else 0.0 for each in seconds]
        few = sum(short) <= MOST_SECONDS
        most = rate or HIGHEST_RATE
        sizes = [ceil(each * most) * channels if few else 0 for each in short]
        self._samples = SharedRows(sizes, np.float32)
        self._facts = SharedRows([3] * len(sizes), np.int32)

    def read(
        self,
        index: int,
        path: Path,
        *,
        rate: int,
        seconds: float,
        start: float,
        silent: bool = False,
    ) -> audio.Samples | audio.Samples16:
        """As `read_audio` with `narrow`."""
        if not self._samples.capacities[index]:
            return audio.read_audio(
                path,
                rate=rate,
                seconds=seconds,
                start=start,
                caps=self.caps,
                narrow=True,
                silent=silent,
                channels=self.channels,
            )
        sound = audio.excerpt(self._sound(index, path), seconds, start)
        if not silent:
            audio.refuse_silence(path, sound)
        return audio.converted(sound, rate, seconds, self.channels)

    def _sound(self, index: int, path: Path) -> audio.Sound:
        samples, facts = self._samples.get(index), self._facts.get(index)
        if samples is not None and facts is not None:
            rate, narrow, width = facts.tolist()
            return audio.Sound(samples.reshape(-1, width) if width else samples, rate, bool(narrow))
        sound = decode_audio(path, self.caps, self.channels)
        if self.rate and self.rate != sound.rate:
            samples = audio.resampled(sound.samples, sound.rate, self.rate)
            sound = audio.Sound(samples, self.rate, narrow=False)
        width = sound.samples.shape[1] if sound.samples.ndim > 1 else 0
        self._facts.put(index, np.array([sound.rate, sound.narrow, width], np.int32))
        self._samples.put(index, sound.samples.reshape(-1))
        return sound

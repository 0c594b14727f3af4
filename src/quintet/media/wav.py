"""Writing of 16-bit WAV part by part, as sound is made."""

import wave
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.floating] | npt.NDArray[np.int16]
MOST_CHANNELS = 8
"""Limit when writing: an array with more has its axes swapped."""


MOST_BYTES = 2**32 - 2**10
"""A WAV file counts its bytes with 32 bits."""


class Clipping(NamedTuple):
    """Samples beyond full scale, limited to it in the file."""

    clipped: int
    total: int
    peak: float

    def __str__(self) -> str:
        return (
            f"{self.clipped:,} of {self.total:,} samples were beyond full scale (peak "
            f"{self.peak:.2f}) and are clipped to [-1, 1]"
        )


class WavWriter:
    """A WAV file that is valid after each part: a reader sees the parts that were added."""

    def __init__(self, to: Path | BinaryIO, rate: int) -> None:
        """A path is opened with the first part."""
        self._to, self._rate = to, rate
        self._wave: wave.Wave_write | None = None
        self._clipped, self._peak = 0, 0.0
        self.samples = 0

    def add(self, samples: Values) -> None:
        """Append (n,) or (n, channels), clipped at full scale; int16 samples unchanged."""
        narrow = np.asarray(samples).dtype == np.int16
        values = np.asarray(samples, np.float32) / (32768 if narrow else 1)
        channels = 1 if values.ndim == 1 else values.shape[-1]
        if values.ndim not in (1, 2) or channels > MOST_CHANNELS or not np.isfinite(values).all():
            known = f"(n,) or (n, channels), of at most {MOST_CHANNELS}"
            raise ValueError(
                f"samples of shape {values.shape}: give finite numbers of shape {known}"
            )
        scaled = samples if narrow else np.rint(np.clip(values, -1, 1) * 32767)
        if self._wave is None:
            self._file = self._to.open("wb") if isinstance(self._to, Path) else self._to
            self._wave = wave.Wave_write(self._file)
            self._wave.setparams((channels, 2, self._rate, 0, "NONE", ""))
        self._wave.writeframes(scaled.astype("<i2").tobytes())  # and the lengths in the header
        self._file.flush()
        self.samples += values.size
        self._clipped += int((np.abs(values) > 1).sum())
        self._peak = max(self._peak, float(np.abs(values).max(initial=0)))

    @property
    def clipping(self) -> Clipping | None:
        """What was clipped, if anything."""
        return Clipping(self._clipped, self.samples, self._peak) if self._clipped else None

    def __enter__(self) -> "WavWriter":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._wave is not None:
            self._wave.close()  # and completes a header that was being written
            self._file.close()

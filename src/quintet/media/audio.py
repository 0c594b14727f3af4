"""Reading and writing of audio, mono float32 (n,); headers are checked before decoding.

Only the requested segment is decoded, or a whole file for many segments. The format is detected by
the first bytes of a file, not by its name. soundfile and soxr (`quintet[audio]`) are imported on
first use; writing needs neither.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from quintet.files import atomic_write
from quintet.media.errors import BadFile, OutOfRange, check_file, decoding
from quintet.media.shards.member import Member, as_path
from quintet.media.wav import Clipping, Values, WavWriter

if TYPE_CHECKING:
    from soundfile import SoundFile

Samples = npt.NDArray[np.float32]
Samples16 = npt.NDArray[np.int16]
"""Samples in units of 1 / 32768."""

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
UNREAD = (".m4a", ".aac", ".opus", ".oga", ".wma", ".aif", ".aiff", ".au", ".ape", ".wv")
"""Audio formats that are not read; their files are counted."""
SILENCE = 1e-4
"""A segment whose peak is below this (-80 dB) is silent."""
LOUDEST = 100.0
"""Maximum amplitude; full scale is 1, so larger values are noise or on another scale."""
MISSING = 0.1
"""Seconds that may be missing at the end: compressed formats count in blocks."""
PREROLL = 10 * 1152
"""Samples of an MP3 decoded before a segment: its frames depend on earlier ones."""

_BLOCK = 1 << 18


class AudioCaps(NamedTuple):
    """Limits that are checked before decoding."""

    max_bytes: int = 1_000_000_000
    max_seconds: float = 7200.0
    max_channels: int = 8
    max_rate: int = 192_000

    @classmethod
    def of(cls, config: Any) -> "AudioCaps":
        """The fields of these names."""
        return cls(*(getattr(config, name) for name in cls._fields))


class AudioInfo(NamedTuple):
    """Content of a header."""

    rate: int
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


class Sound(NamedTuple):
    """Decoded samples, (n,) or (n, channels), at the rate of the file."""

    samples: Samples
    rate: int
    narrow: bool
    """Whether the samples are multiples of 1 / 32768."""
    first: int = 0
    """Index of the first sample in the file."""


# Headers.


def _check_kind(path: Path) -> None:
    """Check the first bytes: some formats of libsndfile open other files."""
    with path.open("rb") as file:
        head = file.read(12)
    riff = head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE"
    mp3 = head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0")
    if not (riff or mp3 or head[:4] in (b"fLaC", b"OggS")):
        reason = "is none of WAV, FLAC, OGG and MP3, or its header is damaged"
        raise BadFile(path, reason, "remove it or save it again as WAV or FLAC")


def _check(path: Path, info: AudioInfo, caps: AudioCaps) -> None:
    if info.frames < 1:
        raise BadFile(path, "lasts 0 seconds", "remove it or copy it again")
    if info.rate > caps.max_rate:
        limit = f"more than max_rate = {caps.max_rate:,}"
        reason = f"has {info.rate:,} samples a second"
        raise OutOfRange(path, reason, limit, "resample it or raise max_rate", info.rate)
    if info.channels > caps.max_channels:
        limit, remedy = (
            f"more than max_channels = {caps.max_channels}",
            "mix the channels or raise it",
        )
        raise OutOfRange(path, f"has {info.channels} channels", limit, remedy, info.channels)
    if info.seconds > caps.max_seconds:
        reason, limit = (
            f"lasts {info.seconds:,.0f} s",
            f"more than max_seconds = {caps.max_seconds:,.0f}",
        )
        raise OutOfRange(path, reason, limit, "cut the file or raise max_seconds", info.seconds)


@contextmanager
def _opened(path: Path, caps: AudioCaps) -> "Generator[SoundFile, None, None]":
    """Open a file and check its header; decoder errors inside the context become BadFile."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        raise ImportError("audio needs soundfile and soxr: pip install 'quintet[audio]'") from error
    check_file(path, caps.max_bytes, "cut the file")
    with decoding(path, "soundfile", RuntimeError):
        _check_kind(path)
        name: Any = os.fsencode(path)  # bytes, because a name on disk need not be valid UTF-8
        if isinstance(path, Member):
            name = path.open("rb")
        with soundfile.SoundFile(name) as file:
            _check(path, _info(file), caps)
            yield file


def _info(file: "SoundFile") -> AudioInfo:
    return AudioInfo(file.samplerate, file.channels, file.frames)


def probe(path: Path | str, caps: AudioCaps = AudioCaps()) -> AudioInfo:  # noqa: B008
    """Rate, channels and length, from the header alone; in a shard, from its index."""
    path = as_path(path)
    if isinstance(path, Member) and path.header.rate:
        header = path.header
        info = AudioInfo(header.rate, header.channels, header.frames)
        check_file(path, caps.max_bytes, "cut the file")
        _check(path, info, caps)
        return info
    with _opened(path, caps) as file:
        return _info(file)


# Samples.


def _is_narrow(file: "SoundFile") -> bool:
    """Whether the samples are multiples of 1 / 32768; a mean over channels is not."""
    lossless = file.format in ("WAV", "WAVEX", "RF64", "FLAC")
    narrow = file.subtype in ("PCM_16", "PCM_S8", "PCM_U8")
    return lossless and narrow and file.channels == 1


def to_16_bits(samples: Samples) -> Samples16:
    """Samples rounded and clipped, as in a 16-bit file."""
    scaled = samples * np.float32(32768)
    np.rint(scaled, out=scaled)
    return scaled.clip(-32768, 32767, out=scaled).astype(np.int16)


def _blocks(
    path: Path, file: "SoundFile", first: int, count: int, mix: bool = True
) -> Iterator[Samples]:
    """Mono blocks (n,), or (n, channels); a multichannel file is never in memory as a whole."""
    done = 0
    while done < count:
        position = first + done
        # soundfile seeks after every read, so every block of an MP3 needs its own preroll.
        before = min(position, PREROLL if file.format == "MP3" else 0)
        file.seek(position - before)
        read = file.read(before + min(_BLOCK, count - done), dtype="float32", always_2d=True)
        block = np.asarray(read[before:], np.float32)
        if not len(block):
            break
        done += len(block)
        if not np.abs(block).max() <= LOUDEST:  # also true for NaN
            _refuse_values(path, block)
        yield block.mean(axis=1) if mix else block
    if done == 0 or done < count - MISSING * file.samplerate:
        end, announced = (first + done) / file.samplerate, file.frames / file.samplerate
        reason = f"ends at {end:.1f} s, before the {announced:.1f} s that its header announces"
        raise BadFile(path, reason, "copy it again, or encode it again")


def _refuse_values(path: Path, block: Samples) -> None:
    if not np.isfinite(block).all():
        raise BadFile(path, "has samples that are not finite numbers", "repair or remove it")
    reason = f"has samples of {np.abs(block).max():.3g}, where 1 is full scale"
    raise BadFile(path, reason, "normalise or remove it")


def refuse_silence(path: Path, sound: Sound) -> None:
    """Raise BadFile if the peak is below `SILENCE`."""
    first, last = sound.first, sound.first + len(sound.samples)
    _refuse_peak(path, float(np.abs(sound.samples).max()), first / sound.rate, last / sound.rate)


def _refuse_peak(path: Path, peak: float, first: float, last: float) -> None:
    if peak < SILENCE:
        reason = f"is silent from {first:.1f} to {last:.1f} s"
        raise BadFile(path, reason, "remove it, or trim the silence")


def _resampled(samples: Samples, source: int, rate: int, count: int) -> Samples:
    """Samples at another rate, cut or padded to `count`."""
    if source != rate:
        samples = _soxr().resample(samples, source, rate)
    out = np.zeros((count, *samples.shape[1:]), np.float32)
    out[: len(samples)] = samples[:count]
    return out


def resampled(samples: Samples, source: int, rate: int) -> Samples:
    """A whole sound at another rate, as `read_audio` returns it."""
    return _resampled(samples, source, rate, length_at(rate, len(samples) / source))


@overload
def read_audio(
    path: Path | str,
    *,
    rate: int,
    seconds: float | None = None,
    start: float = 0.5,
    caps: AudioCaps = ...,
    narrow: Literal[False] = False,
    silent: bool = False,
    channels: int = 1,
) -> Samples: ...
@overload
def read_audio(
    path: Path | str,
    *,
    rate: int,
    seconds: float | None = None,
    start: float = 0.5,
    caps: AudioCaps = ...,
    narrow: Literal[True],
    silent: bool = False,
    channels: int = 1,
) -> Samples | Samples16: ...
def read_audio(
    path: Path | str,
    *,
    rate: int,
    seconds: float | None = None,
    start: float = 0.5,
    caps: AudioCaps = AudioCaps(),  # noqa: B008
    narrow: bool = False,
    silent: bool = False,
    channels: int = 1,
) -> Samples | Samples16:
    """At most `seconds` of a file (None: all), mixed to mono and resampled to `rate`: float32 (n,).

    `start`, 0..1, is the position of the segment among those that fit. A shorter file is returned
    completely, without padding. With `narrow` the samples are int16 (`Samples16`) wherever that
    gives the same numbers: in mono WAV and FLAC of at most 16 bits at this rate. A silent segment
    is an error unless `silent`: short ones fall into pauses. With several `channels` the result is
    (n, channels), and a file of another number is mixed to mono and repeated.
    """
    if rate < 1 or not 0 <= start <= 1 or (seconds is not None and seconds <= 0):
        values = f"rate {rate}, seconds {seconds}, start {start}"
        raise ValueError(f"{values}: give rate from 1, seconds above 0, start in 0..1")
    path = as_path(path)
    with _opened(path, caps) as file:
        first, count = _place(file.frames, file.samplerate, seconds, start)
        sound = _decoded(path, file, first, count, channels)
    if not silent:
        refuse_silence(path, sound)
    return converted(sound, rate, seconds, channels, narrow)


def audio_blocks(
    path: Path | str,
    *,
    rate: int,
    channels: int = 1,
    caps: AudioCaps = AudioCaps(),  # noqa: B008
) -> Iterator[Samples]:
    """A whole file in blocks (n, channels), so that hours of it need little memory; silence is no
    error. Together they are what `read_audio` returns, but for the last bits of the resampler."""
    path = as_path(path)
    with _opened(path, caps) as file:
        mix = channels == 1 or file.channels != channels
        width, left = (1 if mix else channels), length_at(rate, file.frames / file.samplerate)
        stream = _resampler(file.samplerate, rate, width)
        for block in _blocks(path, file, 0, file.frames, mix):
            samples = stream(block.reshape(-1, width), False)[:left]
            left -= len(samples)
            yield np.repeat(samples, channels // width, axis=1)
        rest = stream(np.zeros((0, width), np.float32), True)
        rest = np.concatenate((rest, np.zeros((left, width), np.float32)))[:left]
        yield np.repeat(rest, channels // width, axis=1)


def _resampler(source: int, rate: int, width: int) -> Callable[[Samples, bool], Samples]:
    """Takes blocks (n, width), and whether it is the last."""
    if source == rate:
        return lambda block, last: block
    return _soxr().ResampleStream(source, rate, width, dtype="float32").resample_chunk


def _soxr() -> Any:
    try:
        import soxr
    except ImportError as error:
        hint = "resampling needs soxr: pip install 'quintet[audio]'"
        raise ImportError(hint) from error
    return soxr


def decode_audio(path: Path | str, caps: AudioCaps, channels: int = 1) -> Sound:
    """Decode a whole file, for `excerpt` to take segments from."""
    path = as_path(path)
    with _opened(path, caps) as file:
        return _decoded(path, file, 0, file.frames, channels)


def excerpt(sound: Sound, seconds: float, start: float) -> Sound:
    """The segment that `read_audio` would decode."""
    first, count = _place(len(sound.samples), sound.rate, seconds, start)
    return sound._replace(samples=sound.samples[first : first + count], first=first)


def _place(frames: int, source: int, seconds: float | None, start: float) -> tuple[int, int]:
    """First sample and length of a segment."""
    count = frames if seconds is None else min(frames, ceil(seconds * source))
    return round(start * (frames - count)), count


def _decoded(path: Path, file: "SoundFile", first: int, count: int, channels: int) -> Sound:
    mix = channels == 1 or file.channels != channels
    samples = np.concatenate(list(_blocks(path, file, first, count, mix)))
    if missing := count - len(samples):
        samples = np.concatenate((samples, np.zeros((missing, *samples.shape[1:]), np.float32)))
    return Sound(samples, file.samplerate, _is_narrow(file), first)


def converted(
    sound: Sound, rate: int, seconds: float | None, channels: int = 1, narrow: bool = True
) -> Samples | Samples16:
    """Samples at another rate; see `read_audio`."""
    samples, source = sound.samples, sound.rate
    samples = _resampled(samples, source, rate, length_at(rate, len(samples) / source, seconds))
    if samples.ndim == 1 and channels > 1:
        samples = np.repeat(samples[:, None], channels, axis=1)
    return to_16_bits(samples) if narrow and sound.narrow and rate == source else samples


MOMENT, MARGIN = 0.01, 0.1
"""Seconds over which loudness is measured, and seconds of silence that trimming leaves."""


def trimmed(samples: Samples | Samples16, rate: int, decibels: float) -> Samples | Samples16:
    """Samples without the silence at both ends, except a tenth of a second. Silence is quieter than
    the loudest moment by more than `decibels`."""
    size = max(1, round(MOMENT * rate))
    moments = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    power = np.square(moments).mean(axis=1)
    if not len(power):
        return samples
    loud = np.flatnonzero(power > power.max() * 10 ** (-decibels / 10))
    margin = round(MARGIN * rate)
    # The rest after the last whole moment counts as silence.
    start, end = int(loud[0]) * size - margin, (int(loud[-1]) + 1) * size + margin
    return samples[max(0, start) : end]


def length_at(rate: int, available: float, seconds: float | None = None) -> int:
    """Number of samples in the available seconds, or in `seconds` if that is less."""
    return max(1, round(rate * (available if seconds is None else min(available, seconds))))


def check_audio(path: Path | str, caps: AudioCaps = AudioCaps()) -> AudioInfo:  # noqa: B008
    """Read the whole file in blocks; raises BadFile for everything that `read_audio` would."""
    path = as_path(path)
    with _opened(path, caps) as file:
        info = _info(file)
        peak = max(float(np.abs(block).max()) for block in _blocks(path, file, 0, info.frames))
        _refuse_peak(path, peak, 0.0, info.seconds)
        return info


def write_wav(path: Path | str, samples: Values, rate: int) -> Clipping | None:
    """Write (n,) or (n, channels) as 16-bit WAV, clipped at full scale; int16 samples are written
    unchanged. Returns what was clipped, if anything. The file is complete or absent."""
    writer = WavWriter(content := BytesIO(), rate)
    writer.add(samples)
    atomic_write(path, content.getvalue())
    return writer.clipping

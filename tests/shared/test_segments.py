"""Segments of recordings: kept in memory or read from files, they are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from quintet.engine.data import shared_rows
from quintet.engine.keys import Key
from quintet.media.audio import AudioCaps, Sound, read_audio
from quintet.shared import audio_cache
from quintet.shared.config import SegmentDataConfig
from quintet.shared.segments import Recordings, Segments

RATE = 8_000


def recordings(folder: Path, channels: int = 1, speed: float = 0.0) -> Recordings:
    config = SegmentDataConfig(valid_fraction=0.2, speed=speed)
    return Recordings(folder, config, "train", 0, Segments(2_000, 4_000, RATE, channels))


def write(folder: Path, suffix: str, width: int = 1, seconds: int = 3) -> Path:
    generator = np.random.default_rng(0)
    for number in range(10):
        noise = generator.normal(0, 0.1, (seconds * RATE, width))
        soundfile.write(folder / f"{number}.{suffix}", noise.cumsum(0) * 0.1 % 0.9, RATE)
    return folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were decoded as a whole."""
    found, decode = [], audio_cache.decode_audio

    def noted(path: Path, *settings: Any) -> Sound:
        found.append(path)
        return decode(path, *settings)

    monkeypatch.setattr(audio_cache, "decode_audio", noted)
    return found


@pytest.mark.by_default("ogg-1-1-*", "flac-2-*", "wav-*-0.5")
@pytest.mark.parametrize("speed", [0.0, 0.5])
@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_kept_and_read_are_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    decoded: list[Path],
    suffix: str,
    width: int,
    channels: int,
    speed: float,
) -> None:
    folder = write(tmp_path, suffix, width, seconds=1)
    kept = recordings(folder, channels, speed)
    with monkeypatch.context() as short_of_memory:
        short_of_memory.setattr(shared_rows.memory, "available", lambda: 0)
        made = recordings(folder, channels, speed)
    with monkeypatch.context() as none_is_short:
        none_is_short.setattr(audio_cache, "SHORT", 0.0)
        read = recordings(folder, channels, speed)
    for epoch in range(3):
        key = Key(0, epoch, 2)
        first, again, sought = (source.keyed(2, key)["audio"] for source in (kept, made, read))
        assert torch.equal(first, again)
        assert first.dtype == sought.dtype
        assert first.shape == sought.shape == ((2_000, 2) if channels == 2 else (2_000,))
        if suffix != "ogg":  # libsndfile may begin it some samples off
            torch.testing.assert_close(first, sought, rtol=0, atol=1e-6)
    assert len(decoded) == 1 + 3  # once, and each time


def test_long_recordings_and_many_hours_are_read_by_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[Path]
) -> None:
    write(tmp_path, "wav")
    with monkeypatch.context() as limits:
        limits.setattr(audio_cache, "MOST_SECONDS", 10.0)
        recordings(tmp_path).keyed(0, Key(0, 0, 0))
    assert not decoded
    soundfile.write(tmp_path / "long.wav", np.tile([0.1, -0.1], 20 * RATE), RATE)
    (tmp_path / "damaged.wav").write_bytes(b"RIFF")
    source = recordings(tmp_path)
    names = [source.name(index) for index in range(len(source))]
    for name in {*names} - {"damaged.wav"}:
        source.keyed(names.index(name), Key(0, 0, 0))
    assert {path.name for path in decoded} == {*names} - {"long.wav", "damaged.wav"}


def test_at_another_rate_a_short_file_is_resampled_once_as_a_whole(
    tmp_path: Path, decoded: list[Path]
) -> None:
    write(tmp_path, "wav")
    cache = audio_cache.AudioCache([3.0], AudioCaps(), rate=RATE // 2)
    path = tmp_path / "0.wav"
    whole = read_audio(path, rate=RATE // 2)
    for start in (0.0, 0.3, 1.0):
        part = cache.read(0, path, rate=RATE // 2, seconds=1.0, start=start)
        first = round(start * (len(whole) - RATE // 2))
        np.testing.assert_array_equal(part, whole[first : first + RATE // 2])
    assert len(decoded) == 1

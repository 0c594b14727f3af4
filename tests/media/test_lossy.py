"""Copies through Opus and MP3: in time with the original, at the rate that is stated."""

from importlib.util import find_spec

import numpy as np
import pytest

from quintet.media import lossy
from quintet.media.audio import Samples

needs_libraries = pytest.mark.skipif(bool(lossy.missing()), reason="needs av and soxr")
RATE = 16_000


def music(seconds: float = 1.5, rate: int = RATE, channels: int = 1) -> Samples:
    """Tones that start one after another."""
    time = np.arange(round(seconds * rate)) / rate
    sound = np.zeros((len(time), channels), np.float32)
    for number, hertz in enumerate((220, 330, 440, 275, 660)):
        since = np.maximum(time - 0.25 * number, 0)
        tone = 0.3 * np.sin(2 * np.pi * hertz * since) * np.exp(-6 * since) * (since > 0)
        sound[:, number % channels] += tone.astype(np.float32)
    return sound


def ratio(original: Samples, copy: Samples) -> float:
    """Signal and error, in dB."""
    error = np.square(original - copy).mean()
    return float(10 * np.log10(np.square(original).mean() / max(error, 1e-12)))


@pytest.mark.parametrize("delay", [-1500, -7, 0, 1, 1105])
def test_a_copy_that_is_late_or_early_is_put_in_time(delay: int) -> None:
    original = music()
    late = np.pad(original, ((1600, 1600), (0, 0)))[1600 - delay :]
    for copy in (late, late[:-2000]):
        found = lossy.in_time(copy, original, RATE)
        assert found.shape == original.shape
        if len(copy) >= len(original) + delay:
            np.testing.assert_array_equal(found[1500:-1500], original[1500:-1500])


def test_silence_is_in_time() -> None:
    silence = np.zeros((100, 1), np.float32)
    assert lossy.in_time(silence, silence, RATE).shape == (100, 1)


@needs_libraries
@pytest.mark.parametrize(("kind", "kbit"), [("opus", 24), ("mp3", 32)])
@pytest.mark.parametrize(("rate", "channels"), [(RATE, 1), (44_100, 2)])
def test_a_copy_is_as_long_in_time_and_close(
    kind: str, kbit: int, rate: int, channels: int
) -> None:
    original = music(rate=rate, channels=channels)
    copy = lossy.lossy_copy(original, rate, kind, kbit)
    assert copy.shape == original.shape
    assert copy.dtype == np.float32
    here = ratio(original, copy)
    shifts = (np.roll(copy, shift, 0) for shift in (-8, 8))  # a quarter of a millisecond
    assert here > 5
    assert here > max(ratio(original, shifted) for shifted in shifts)


@needs_libraries
@pytest.mark.parametrize(("kind", "kbit"), [("opus", 12), ("opus", 24), ("mp3", 32)])
def test_files_have_the_rate_that_is_stated(kind: str, kbit: int) -> None:
    """But for the pages and headers of the container."""
    encoder, seconds = lossy.ENCODERS[kind], 3.0
    rate = encoder.rates[-1]
    content = lossy._encoded(music(seconds, rate), rate, encoder, kbit)
    assert 8 * len(content) / seconds / 1000 == pytest.approx(kbit, rel=0.12)


def test_libraries_that_are_missing_are_named() -> None:
    assert lossy.missing() == [name for name in lossy.NEEDED if find_spec(name) is None]

"""Sounds in and out: the right stretch, length and pitch, and a sentence for what is no sound."""

import os
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

soundfile = pytest.importorskip("soundfile")

from quintet.media.audio import (  # noqa: E402
    AudioCaps,
    check_audio,
    probe,
    read_audio,
    to_16_bits,
    write_wav,
)
from quintet.media.errors import BadFile  # noqa: E402

RATES = (8_000, 16_000, 22_050, 44_100, 48_000)


def sine(hertz: float, seconds: float, rate: int, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(
        "f4"
    )


def pitch(samples: np.ndarray, rate: int) -> float:
    """The loudest frequency, to a fraction of a hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 8 * len(samples)))
    return float(spectrum.argmax() * rate / (8 * len(samples)))


def put(path: Path, samples: np.ndarray, rate: int = 16_000, **how: str) -> Path:
    soundfile.write(path, samples, rate, **how)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sounds")


# -- what comes out -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(RATES),
    st.sampled_from(RATES),
    st.floats(100, 3000),
    st.floats(0.3, 1.5),
    st.integers(1, 3),
)
def test_length_and_pitch_are_kept_at_every_rate(place, source, rate, hertz, seconds, channels):
    tone = np.stack([sine(hertz, seconds, source)] * channels, axis=1)
    path = put(place / "tone.wav", tone, source)
    found = read_audio(path, rate=rate)
    assert found.dtype == np.float32
    assert abs(len(found) - len(tone) * rate / source) <= 0.5
    assert pitch(found, rate) == pytest.approx(hertz, abs=1.0)
    assert np.abs(found[len(found) // 4 : -len(found) // 4]).max() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_every_format_gives_the_same_samples(suffix, tmp_path):
    path = put(tmp_path / f"tone.{suffix}", sine(440, 2, 44_100), 44_100)
    about = probe(path)
    assert (about.rate, about.channels) == (44_100, 1)
    assert about.seconds == pytest.approx(2, abs=0.06)
    found = read_audio(path, rate=16_000, seconds=1)
    assert len(found) == 16_000
    assert pitch(found, 16_000) == pytest.approx(440, abs=1)
    assert np.abs(found).max() == pytest.approx(0.5, abs=0.05)


def test_the_format_is_detected_by_content(tmp_path):
    flac = put(tmp_path / "a.flac", sine(440, 1, 16_000))
    named = tmp_path / "a.mp3"
    named.write_bytes(flac.read_bytes())
    assert pitch(read_audio(named, rate=16_000), 16_000) == pytest.approx(440, abs=1)


@given(st.floats(0, 1), st.floats(0.05, 3))
@settings(max_examples=30, deadline=None)
def test_start_sets_the_position_of_the_segment(place, start, seconds):
    ramp = np.linspace(0.1, 0.9, 16_000).astype(np.float32)
    path = put(place / "ramp.wav", ramp, subtype="FLOAT")
    found = read_audio(path, rate=16_000, seconds=seconds, start=start)
    count = min(16_000, round(seconds * 16_000))
    first = round(start * (16_000 - min(16_000, int(np.ceil(seconds * 16_000)))))
    np.testing.assert_array_equal(found, ramp[first : first + count])


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
def test_a_segment_equals_that_part_of_the_whole_file(suffix, tmp_path):
    path = put(tmp_path / f"a.{suffix}", sine(440, 2, 44_100), 44_100)
    whole = read_audio(path, rate=44_100)
    for start in (0.1, 0.5, 0.9):
        found = read_audio(path, rate=44_100, seconds=0.5, start=start)
        first = round(start * (len(whole) - 22_050))
        np.testing.assert_allclose(found, whole[first : first + 22_050], atol=1e-4)


def test_only_the_segment_is_decoded(tmp_path):
    path = put(tmp_path / "a.flac", np.concatenate([sine(300, 60, 16_000), sine(600, 60, 16_000)]))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.9)])  # the end is missing
    assert pitch(read_audio(path, rate=16_000, seconds=2, start=0.1), 16_000) == pytest.approx(
        300, abs=1
    )


def test_channels_are_mixed_to_one(tmp_path):
    channels = [sine(200 * k, 1, 16_000, 0.4) for k in range(1, 9)]
    path = put(tmp_path / "eight.wav", np.stack(channels, axis=1), subtype="FLOAT")
    found = read_audio(path, rate=16_000)
    np.testing.assert_allclose(found, np.mean(channels, axis=0), atol=1e-6)


def test_clipped_audio_is_accepted(tmp_path):
    path = put(tmp_path / "loud.wav", np.clip(sine(300, 1, 16_000, 5.0), -1, 1))
    check_audio(path)
    assert np.abs(read_audio(path, rate=16_000)).max() == pytest.approx(1, abs=1e-3)


def test_a_name_that_is_not_utf_8_is_read(tmp_path):
    path = put(tmp_path / "a.wav", sine(300, 0.1, 16_000))
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.wav"))
    path.rename(odd)
    assert probe(odd).frames == 1600


@given(st.integers(1, 50), st.sampled_from(RATES), st.sampled_from(RATES))
@settings(max_examples=20, deadline=None)
def test_the_shortest_files_are_read(place, count, source, rate):
    path = put(place / "short.wav", np.full(count, 0.5), source)
    assert len(read_audio(path, rate=rate, seconds=10)) == max(1, round(count / source * rate))


# -- what is refused ------------------------------------------------------------------------


def refused(path: Path, *words: str, caps: AudioCaps = AudioCaps()) -> None:  # noqa: B008
    with pytest.raises(BadFile) as caught:
        check_audio(path, caps)
    assert path.name in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.remedy


def test_files_that_are_not_audio_are_refused(tmp_path):
    for name, content, word in (
        ("words.wav", b"this is not a sound at all", "none of WAV"),
        ("empty.wav", b"", "0 bytes"),
        ("zeros.mp3", bytes(4000), "none of WAV"),
        ("aiff.wav", b"FORM\x00\x00\x00\x00AIFF" + bytes(100), "none of WAV"),
        ("cut.wav", b"RIFF\x24\x00\x00\x00WAVEfmt ", "damaged"),
        ("cut.ogg", b"OggS" + bytes(60), "damaged"),
        ("cut.mp3", b"ID3\x04" + bytes(300), "damaged"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        refused(path, word)
    refused(tmp_path / "absent.wav", "cannot be read")
    (tmp_path / "folder.wav").mkdir()
    refused(tmp_path / "folder.wav", "regular file")


@pytest.mark.parametrize("suffix", ["flac", "mp3"])
def test_a_truncated_file_is_refused(suffix, tmp_path):
    random = np.random.default_rng(0)
    path = put(tmp_path / f"a.{suffix}", random.uniform(-0.5, 0.5, 60_000))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadFile, match=r"a\."):
        check_audio(path)
    with pytest.raises(BadFile, match=r"a\."):
        read_audio(path, rate=16_000, seconds=1, start=1.0)


def test_an_mp3_with_a_broken_header_is_refused(tmp_path):
    path = put(tmp_path / "a.mp3", sine(440, 1, 16_000))
    content = path.read_bytes()
    path.write_bytes(b"\x12\x34\x56\x78" * 50 + content[200:])
    refused(path, "none of WAV", "header is damaged")


def test_empty_audio_is_refused(tmp_path):
    refused(put(tmp_path / "none.wav", np.zeros(0)), "0 seconds")


def test_non_finite_samples_are_refused(tmp_path):
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        tone = sine(300, 1, 16_000)
        tone[777] = value
        refused(put(tmp_path / f"{name}.wav", tone, subtype="FLOAT"), "not finite")
    loud = put(tmp_path / "huge.wav", sine(300, 1, 16_000, 1e20), subtype="FLOAT")
    refused(loud, "full scale")


def test_silence_is_refused_with_its_position(tmp_path):
    refused(put(tmp_path / "still.wav", np.zeros(16_000)), "silent from 0.0 to 1.0 s")
    half = np.concatenate([np.zeros(32_000), sine(300, 2, 16_000)])
    path = put(tmp_path / "half.wav", half)
    check_audio(path)
    with pytest.raises(BadFile, match=r"silent from 0\.0 to 1\.0 s"):
        read_audio(path, rate=16_000, seconds=1, start=0.0)
    assert len(read_audio(path, rate=16_000, seconds=1, start=1.0)) == 16_000


def test_limits_are_checked_before_decoding(tmp_path, monkeypatch):
    path = put(tmp_path / "a.wav", np.zeros((8_000, 4)), 8_000)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: pytest.fail("decoded"))
    for change, words in (
        ({"max_bytes": 1000}, ("64,", "max_bytes")),
        ({"max_seconds": 0.9}, ("lasts 1 s", "max_seconds")),
        ({"max_channels": 3}, ("4 channels", "max_channels")),
        ({"max_rate": 7_999}, ("8,000", "max_rate")),
    ):
        refused(path, *words, caps=AudioCaps()._replace(**change))
    assert probe(path).seconds == 1


def test_three_hours_are_refused_unless_the_limit_allows_it(tmp_path):
    """A header alone: its samples would take a gigabyte."""
    path = tmp_path / "long.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 1, 8_000, 0, "NONE", ""))
        file.writeframes(b"\x80" * 8_000)
    size = 3 * 3600 * 8_000
    with path.open("r+b") as file:
        file.seek(4)
        file.write((size + 36).to_bytes(4, "little"))
        file.seek(40)
        file.write(size.to_bytes(4, "little"))
        file.truncate(size + 44)
    refused(path, "10,800 s", "max_seconds")
    assert probe(path, AudioCaps(max_seconds=20_000)).seconds == 10_800


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["wav", "flac", "ogg", "mp3"]), st.data())
def test_damaged_files_are_read_or_refused(place, suffix, data):
    path = place / f"whole.{suffix}"
    if not path.exists():
        put(path, np.random.default_rng(0).uniform(-0.5, 0.5, 8_000), 8_000)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, min(len(content) - 1, 200)))] = data.draw(
            st.integers(0, 255)
        )
    hurt = place / f"hurt.{suffix}"
    hurt.write_bytes(content)
    try:
        found = read_audio(hurt, rate=16_000, seconds=1)
    except BadFile:
        return
    assert 1 <= len(found) <= 16_000
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "wrong", [{"rate": 0}, {"rate": 8_000, "seconds": 0}, {"rate": 8_000, "start": 1.5}]
)
def test_an_invalid_segment_is_refused(wrong, tmp_path):
    path = put(tmp_path / "a.wav", sine(300, 0.1, 16_000))
    with pytest.raises(ValueError, match="give rate"):
        read_audio(path, **wrong)


# -- writing --------------------------------------------------------------------------------


@given(st.lists(st.floats(-1.5, 1.5, width=32), min_size=1, max_size=200))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_back(place, values):
    path = place / "written.wav"
    write_wav(path, np.array(values), 22_050)
    found, rate = soundfile.read(path, dtype="float32")
    assert rate == 22_050
    np.testing.assert_allclose(found, np.clip(values, -1, 1), atol=1e-4)


def test_samples_of_16_bits_are_written_as_they_are(tmp_path):
    wav = np.array([-32768, -1, 0, 1, 32767], np.int16)
    assert write_wav(tmp_path / "a.wav", wav, 8_000) is None
    assert (read_audio(tmp_path / "a.wav", rate=8_000, narrow=True) == wav).all()


def test_clipped_samples_are_counted(tmp_path):
    assert write_wav(tmp_path / "a.wav", np.array([-1.0, 0.5, 1.0]), 8_000) is None
    clipping = write_wav(tmp_path / "a.wav", np.array([-2.5, 0.5, 1.1]), 8_000)
    assert str(clipping) == (
        "2 of 3 samples were beyond full scale (peak 2.50) and are clipped to [-1, 1]"
    )
    found, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    np.testing.assert_allclose(found, [-1, 0.5, 1], atol=1e-4)


def test_channels_come_back(tmp_path):
    pair = np.random.default_rng(0).uniform(-0.5, 0.5, (800, 2))
    assert write_wav(tmp_path / "a.wav", pair, 8_000) is None
    back = read_audio(tmp_path / "a.wav", rate=8_000, channels=2)
    np.testing.assert_allclose(back, pair, atol=1e-4)


def test_invalid_samples_are_not_written(tmp_path):
    for wrong in (np.zeros((2, 400)), np.zeros((4, 2, 1)), np.array([np.nan])):
        with pytest.raises(ValueError, match="finite numbers"):
            write_wav(tmp_path / "a.wav", wrong, 8_000)
    assert not list(tmp_path.iterdir())


# -- 16 bits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_samples_of_16_bits_can_stay_16_bits_with_the_same_values(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    every = np.arange(-(2**15), 2**15, dtype=np.int16)
    soundfile.write(path, every, 8_000)
    for seconds in (None, 3.0):
        narrow = read_audio(path, rate=8_000, seconds=seconds, narrow=True)
        assert narrow.dtype == np.int16
        wide = read_audio(path, rate=8_000, seconds=seconds)
        assert wide.dtype == np.float32
        assert np.array_equal(narrow / np.float32(32768), wide)


@pytest.mark.parametrize(
    ("channels", "subtype", "rate"),
    [(1, "PCM_24", 8_000), (1, "FLOAT", 8_000), (2, "PCM_16", 8_000), (1, "PCM_16", 16_000)],
)
def test_samples_that_16_bits_cannot_hold_stay_floats(tmp_path, channels, subtype, rate):
    sound = np.random.default_rng(0).uniform(-1, 1, (8_000, channels))
    soundfile.write(tmp_path / "a.wav", sound, rate, subtype=subtype)
    assert read_audio(tmp_path / "a.wav", rate=8_000, narrow=True).dtype == np.float32


def test_rounding_to_16_bits_is_limited_and_off_by_at_most_half_a_unit():
    sound = np.linspace(-1.5, 1.5, 10_001, dtype=np.float32)
    narrow = to_16_bits(sound)
    assert narrow.min() == -32768
    assert narrow.max() == 32767
    inside = np.abs(sound) < 0.9999
    assert np.abs(narrow[inside] - sound[inside] * np.float32(32768)).max() <= 0.5

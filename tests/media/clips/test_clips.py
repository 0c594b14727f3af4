import os
import subprocess
import sys
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from quintet.media.clips.reader import check_clip, frames_of, probe, read_clip, resize_crop_clip
from quintet.media.clips.whole import read_whole, whole_size
from quintet.media.clips.windows import Caps, ClipInfo, excerpt, window
from quintet.media.clips.writer import write_gif, write_mp4
from quintet.media.errors import BadFile
from quintet.media.pixels import resize_crop

KINDS = {
    "mp4": "libx264",
    "mov": "libx264",
    "mkv": "libx264",
    "webm": "libvpx-vp9",
    "avi": "mpeg4",
}
STEP = 4


def numbered(number: int, height: int = 32, width: int = 48) -> np.ndarray:
    """A frame that says which one it is: by its grey level, and a bright left edge."""
    frame = np.full((height, width, 3), 20 + STEP * number, np.uint8)
    frame[:, : width // 4] = 250
    return frame


def number_of(frame: np.ndarray) -> int:
    height, width = frame.shape[:2]
    return round((float(frame[height // 4 : -height // 4, width // 2 :].mean()) - 20) / STEP)


def numbers(clip: np.ndarray) -> list[int]:
    return [number_of(frame) for frame in clip]


def encode(
    path: Path,
    frames: int = 40,
    rate: int = 30,
    codec: str | None = None,
    times: list[int] | None = None,
    gop: int = 12,
    options: dict[str, str] | None = None,
    **about,
) -> Path:
    """A video of numbered frames; with `times` in milliseconds, at those."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec or KINDS[path.suffix[1:]], rate=rate)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        stream.codec_context.bit_rate = 4_000_000  # so that neighbouring shades stay apart
        if "rotation" in about:
            stream.set_display_rotation(about["rotation"])
        if "aspect" in about:
            stream.codec_context.sample_aspect_ratio = about["aspect"]
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(numbered(number), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def fill_with_silence(container, stream, seconds: float) -> None:
    wave = np.zeros((1, int(16_000 * seconds)), np.float32)
    frame = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
    frame.rate = 16_000
    for packet in [*stream.encode(frame), *stream.encode()]:
        container.mux(packet)


@pytest.mark.parametrize("suffix", ["mpg", "mpeg", "ogv"])
def test_older_containers_are_read_from_any_position(tmp_path, suffix):
    path = encode(tmp_path / f"a.{suffix}", codec="libvpx" if suffix == "ogv" else "mpeg2video")
    assert [number_of(frame) for frame in frames_of(path)] == list(range(40))
    for start in (0.0, 0.3, 1.0):
        found = numbers(read_clip(path, count=10, start=start))
        assert 20 * start <= found[0] <= 30 * start  # the length of MPEG is an estimate
        assert all(b - a in (0, 1) for a, b in pairwise(found))
    check_clip(path, count=10)


def packets(path: Path) -> list[tuple[int, int, bool]]:
    """Offset and size of each video packet in the file, and whether it is a key frame."""
    with av.open(str(path)) as container:
        return [(p.pos, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("webm", "libvpx-vp9")])
def test_windows_beside_the_damage_are_read_and_those_in_it_refused(tmp_path, suffix, codec):
    path = encode(tmp_path / f"a.{suffix}", frames=48, codec=codec)
    content = bytearray(path.read_bytes())
    first, last = [i for i, (*_, key) in enumerate(packets(path)) if key][1:3]
    for offset, size, _ in packets(path)[first:last]:
        content[offset + 8 : offset + size] = b"\xff" * (size - 8)
    path.write_bytes(content)
    assert numbers(read_clip(path, count=8, start=0)) == list(range(8))
    assert numbers(read_clip(path, count=4, start=1)) == [44, 45, 46, 47]
    with pytest.raises(BadFile, match=r"is damaged near \d\.\d s"):
        read_clip(path, count=8, start=first / 40)
    check_clip(path, count=4)


def test_one_frame_that_cannot_be_read_is_done_without(tmp_path):
    path = encode(tmp_path / "a.webm", codec="libvpx", gop=1)
    content = bytearray(path.read_bytes())
    offset, size, _ = packets(path)[10]
    content[offset + 4 : offset + size] = b"\xff" * (size - 4)
    path.write_bytes(content)
    assert numbers(read_clip(path, count=8, start=0.2)) == [6, 7, 8, 9, 11, 12, 13, 14]
    assert len(list(frames_of(path))) == 39


@pytest.mark.parametrize("suffix", KINDS)
def test_every_container_gives_exactly_the_requested_frames(tmp_path, suffix):
    path = encode(tmp_path / f"a.{suffix}")
    info = probe(path)
    assert (info.height, info.width) == (32, 48)
    assert info.rate == pytest.approx(30)
    assert info.seconds == pytest.approx(40 / 30, abs=2e-3)
    assert info.frames in (40, None)
    for start, first in ((0.0, 0), (0.5, 12), (0.8, 18), (1.0, 23)):
        clip = read_clip(path, count=17, start=start)
        assert clip.dtype == np.uint8
        assert clip.shape == (17, 32, 48, 3)
        assert abs(numbers(clip)[0] - first) <= (start == 0.5)  # a tie may round either way
        assert numbers(clip) == list(range(numbers(clip)[0], numbers(clip)[0] + 17))
    assert numbers(read_clip(path, count=5, start=0, rate=15)) == [0, 2, 4, 6, 8]
    assert numbers(read_clip(path, count=5, start=1, rate=15)) == [31, 33, 35, 37, 39]
    assert numbers(read_clip(path, count=5, start=1, rate_factor=1 / 3)) == [27, 30, 33, 36, 39]
    assert numbers(read_clip(path, count=6, start=0, rate=60)) == [0, 0, 1, 1, 2, 2]


def test_a_gif_gives_exactly_the_requested_frames(tmp_path):
    path = tmp_path / "a.gif"
    write_gif(path, np.stack([numbered(i) for i in range(20)]), 10)
    assert probe(path) == (20, pytest.approx(2.0), pytest.approx(10), 32, 48)
    assert numbers(read_clip(path, count=5, start=1)) == [15, 16, 17, 18, 19]
    assert numbers(read_clip(path, count=4, start=0, rate=5)) == [0, 2, 4, 6]
    assert numbers(read_clip(path, count=4, start=0, rate=20)) == [0, 0, 1, 1]


def test_a_gif_is_shown_on_white_and_by_the_times_of_its_frames(tmp_path):
    shades = [Image.fromarray(numbered(i)) for i in range(4)]
    path = tmp_path / "a.gif"
    shades[0].save(path, save_all=True, append_images=shades[1:], duration=[100, 300, 100, 100])
    assert numbers(read_clip(path, count=6, start=0, rate=10)) == [0, 1, 1, 1, 2, 3]
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.save(tmp_path / "b.gif")
    assert read_clip(tmp_path / "b.gif", count=2).min() == 255


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_variable_rate_is_read_by_its_time_stamps(tmp_path, suffix):
    times = [0, 100, 200, 300, 700, 800, 900, 1000, 1400, 1500]
    path = encode(tmp_path / f"a.{suffix}", frames=10, times=times, gop=4)
    assert numbers(read_clip(path, count=10, start=0, rate=10)) == [0, 1, 2, 3, 3, 3, 3, 4, 5, 6]
    assert numbers(read_clip(path, count=10, start=0)) == list(range(10))
    for start in (0.0, 0.3, 0.6, 1.0):
        found = numbers(read_clip(path, count=4, start=start))
        assert found == list(range(found[0], found[0] + 4))


@pytest.mark.parametrize("suffix", [*KINDS, "gif"])
def test_a_short_clip_repeats_its_last_frame(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "gif":
        write_gif(path, np.stack([numbered(i) for i in range(5)]), 10)
    else:
        encode(path, frames=5)
    for start in (0.0, 0.4, 1.0):
        assert numbers(read_clip(path, count=8, start=start)) == [0, 1, 2, 3, 4, 4, 4, 4]
    assert len(read_clip(path, count=8, rate=1.0)) == 8


def test_a_single_frame_is_a_clip(tmp_path):
    assert numbers(read_clip(encode(tmp_path / "a.mp4", frames=1), count=3)) == [0, 0, 0]


def test_only_the_requested_frames_are_decoded(tmp_path):
    """Everything before the key frame is destroyed, and nothing notices."""
    path = encode(tmp_path / "a.mp4", frames=48, codec="mpeg4", gop=12)
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    content = bytearray(path.read_bytes())
    for place, size in packets[:36]:
        content[place : place + size] = bytes(size)
    path.write_bytes(content)
    assert numbers(read_clip(path, count=8, start=1)) == list(range(40, 48))
    with suppress(BadFile):
        assert numbers(read_clip(path, count=8, start=0)) != list(range(8))


def test_a_stream_without_length_and_index_is_counted(tmp_path):
    path = encode(tmp_path / "a.mkv", options={"live": "1"})
    with av.open(str(path)) as container:
        assert container.duration is None
    assert probe(path).frames == 40
    assert numbers(read_clip(path, count=8, start=1)) == list(range(32, 40))
    with pytest.raises(BadFile, match="more than max_frames = 20"):
        probe(path, Caps(max_frames=20))


def test_the_suffix_need_not_tell_the_truth(tmp_path):
    path = encode(tmp_path / "a.webm").rename(tmp_path / "a.mp4")
    assert numbers(read_clip(path, count=3, start=0)) == [0, 1, 2]


@pytest.mark.parametrize(("rotation", "quarters"), [(90, 1), (180, 2), (-90, 3)])
def test_rotation_is_undone(tmp_path, rotation, quarters):
    path = encode(tmp_path / "a.mp4", frames=4, rotation=rotation)
    plain = np.stack([numbered(i) for i in range(4)])
    clip = read_clip(path, count=4)
    assert clip.shape == np.rot90(plain, quarters, (1, 2)).shape
    assert np.abs(clip.astype(int) - np.rot90(plain, quarters, (1, 2))).mean() < 5


def test_pixels_come_out_square(tmp_path):
    path = encode(tmp_path / "a.mp4", frames=4, aspect=Fraction(2, 1))
    assert read_clip(path, count=2).shape == (2, 32, 96, 3)


def test_large_frames_are_reduced_but_not_below_at_least(tmp_path):
    path = encode(tmp_path / "a.mp4", frames=4)
    assert read_clip(path, count=2, at_least=16).shape == (2, 16, 24, 3)
    assert read_clip(path, count=2, at_least=100).shape == (2, 32, 48, 3)


def test_audio_tracks_are_ignored_and_files_without_video_refused(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        fill_with_silence(container, container.add_stream("aac", rate=16_000), seconds=1)
    with pytest.raises(BadFile, match="holds no video"):
        read_clip(tmp_path / "a.mp4", count=2)
    with av.open(str(tmp_path / "b.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        sound = container.add_stream("aac", rate=16_000)
        frames = [av.VideoFrame.from_ndarray(numbered(i), format="rgb24") for i in range(10)]
        packets = [packet for frame in [*frames, None] for packet in stream.encode(frame)]
        for packet in packets:
            container.mux(packet)
        fill_with_silence(container, sound, seconds=3)
    assert numbers(read_clip(tmp_path / "b.mp4", count=4, start=1)) == [6, 7, 8, 9]


def test_files_that_are_no_videos_are_named_with_the_reason(tmp_path):
    noise = np.random.default_rng(0).bytes(4000)
    cases = {
        "empty.mp4": (b"", "is empty"),
        "text.mp4": (b"hello, I am a letter", "is none of MP4"),
        "noise.mkv": (noise, "is none of MP4"),
        "noise.mp4": (b"\0\0\0\x20ftypisom" + noise, "is damaged"),
        "noise.webm": (b"\x1aE\xdf\xa3" + noise, "is damaged"),
        "noise.avi": (b"RIFF\0\0\1\0AVI " + noise, "is damaged|holds no video"),
        "noise.gif": (b"GIF89a" + noise, "damaged|pixels"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        for read in (probe, lambda path: read_clip(path, count=2)):
            with pytest.raises(BadFile, match=reason) as caught:
                read(tmp_path / name)
            assert name in str(caught.value)
            assert caught.value.remedy


def test_an_uncommon_decoder_is_not_used(tmp_path):
    path = encode(tmp_path / "a.avi", frames=3, codec="asv1")
    with pytest.raises(BadFile, match="encoded as asv1, which is not supported; encode it"):
        read_clip(path, count=2)


def test_a_pipe_or_a_missing_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(BadFile, match="not a regular file"):
        probe(tmp_path / "pipe.mp4")
    with pytest.raises(BadFile, match="cannot be read"):
        probe(tmp_path / "gone.mp4")


@pytest.mark.parametrize(
    "content",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{0}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{0}'\n",
        "{0}",
        '<?xml version="1.0"?><MPD><Period><BaseURL>{0}</BaseURL></Period></MPD>',
        "\0\0\0\x08free#EXTM3U\n#EXTINF:9,\n{0}\n",
    ],
)
def test_a_playlist_is_no_video_whatever_its_name(tmp_path, content):
    secret = encode(tmp_path / "secret.mp4")
    for place in (secret, secret.name, secret.as_uri(), "http://localhost:9/a.mp4"):
        for suffix in KINDS:
            path = tmp_path / f"list.{suffix}"
            path.write_text(content.format(place))
            with pytest.raises(BadFile):
                read_clip(path, count=2)


def test_a_movie_that_refers_to_another_file_does_not_reach_it(tmp_path):
    """The media's place in a QuickTime movie can be a path; ours is turned into one."""
    path = encode(tmp_path / "a.mov", options={"movflags": "faststart"})
    content = path.read_bytes()
    place = content.index(b"dref")
    entry = content.index(b"url ", place)
    changed = bytearray(content)
    changed[entry + 4 : entry + 8] = bytes(4)  # "not in this file"
    path.write_bytes(changed)
    with suppress(BadFile):
        assert numbers(read_clip(path, count=3, start=0)) == [0, 1, 2]


def test_limits_are_checked_before_decoding_and_name_the_setting(tmp_path):
    path = encode(tmp_path / "a.mp4")
    write_gif(tmp_path / "a.gif", np.stack([numbered(i) for i in range(20)]), 10)
    for name in ("a.mp4", "a.gif"):
        path = tmp_path / name
        for caps, reason in (
            (Caps(max_pixels=1000), r"48 x 32 pixels, more than max_pixels = 1,000; .*max_pixels"),
            (Caps(max_bytes=100), "more than max_bytes = 100; .* raise max_bytes"),
            (Caps(max_seconds=1), "more than max_seconds = 1; .* raise max_seconds"),
            (Caps(max_frames=10), "frames, more than max_frames = 10; .* raise max_frames"),
        ):
            with pytest.raises(BadFile, match=reason):
                probe(path, caps)
            with pytest.raises(BadFile, match=reason):
                read_clip(path, count=2, caps=caps)


def test_a_size_that_the_header_hides_is_refused_by_the_decoder(tmp_path):
    """The container says 48 x 32; the stream inside says 2048 x 2048."""
    large, small = tmp_path / "large.mp4", encode(tmp_path / "small.mp4", codec="mpeg4")
    with av.open(str(large), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.height, stream.width, stream.pix_fmt = 2048, 2048, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((2048, 2048, 3), np.uint8), format="rgb24")
        container.mux([*stream.encode(frame), *stream.encode()])
    wide = (48 << 16).to_bytes(4, "big") + (32 << 16).to_bytes(4, "big")
    assert wide in small.read_bytes()
    lying = large.read_bytes().replace((2048 << 16).to_bytes(4, "big") * 2, wide)
    lying = lying.replace((2048).to_bytes(2, "big") * 2, b"\0\x30\0\x20")
    large.write_bytes(lying)
    with pytest.raises(BadFile):
        read_clip(large, count=1, caps=Caps(max_pixels=100_000))


def test_a_bomb_is_refused_by_its_header(tmp_path):
    path = encode(tmp_path / "a.avi", codec="ffvhuff")  # the size is nowhere but in the header
    content = bytearray(path.read_bytes())
    place = content.index(b"strf") + 12
    content[place : place + 8] = (30_000).to_bytes(4, "little") * 2
    path.write_bytes(content)
    with pytest.raises(BadFile, match="one beyond max_pixels = 36,000,000"):
        read_clip(path, count=2)


@pytest.mark.parametrize("suffix", [*KINDS, "gif"])
def test_a_truncated_file_is_refused_or_read_as_far_as_it_goes(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "gif":
        write_gif(path, np.stack([numbered(i) for i in range(40)]), 10)
    else:
        encode(path)
    content = path.read_bytes()
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        path.write_bytes(content[: int(len(content) * share)])
        for start in (0.0, 1.0):
            with suppress(BadFile):
                found = numbers(read_clip(path, count=4, start=start))
                assert all(b - a in (0, 1) for a, b in pairwise(found))


def test_check_detects_a_truncated_video(tmp_path):
    path = encode(tmp_path / "a.mp4", frames=55, rate=10, options={"movflags": "faststart"})
    check_clip(path, count=8)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with pytest.raises(BadFile, match=r"ends at \d\.\d s, before the 5\.5 s|damaged"):
        check_clip(path, count=8)


@pytest.mark.by_default("mp4", "mkv", "gif")
@pytest.mark.parametrize("suffix", [*KINDS, "gif"])
def test_damaged_bytes_never_raise_anything_else(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "gif":
        write_gif(path, np.stack([numbered(i) for i in range(6)]), 10)
    else:
        encode(path, frames=10, gop=4)
    content = path.read_bytes()
    random = np.random.default_rng(7)
    read = 0
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(int(random.integers(1, 12))):
            damaged[int(random.integers(len(damaged)))] = int(random.integers(256))
        if random.random() < 0.2:
            at = int(random.integers(len(damaged)))
            del damaged[at : at + int(random.integers(1, 40))]
        path.write_bytes(damaged)
        with suppress(BadFile):
            clip = read_clip(
                path,
                count=4,
                start=float(random.random()),
                rate=float(random.choice([7.0, 30.0])),
                caps=Caps(max_pixels=100_000, max_seconds=1000, max_frames=5000),
            )
            assert clip.shape[0] == 4
            assert clip.dtype == np.uint8
            read += 1
    assert read > 0


@settings(deadline=None)
@given(
    st.integers(1, 10_000),
    st.sampled_from([5.0, 23.976, 25.0, 30.0, 240.0]),
    st.integers(1, 40),
    st.floats(0, 1),
    st.none() | st.floats(0.5, 100),
)
def test_a_window_lies_in_the_clip_where_it_fits(frames, rate, count, start, wanted):
    info = ClipInfo(frames, frames / rate, rate, 8, 8)
    found = window(info, count=count, start=start, rate=wanted)
    length = (count - 1) / (wanted or rate)
    assert found.first >= 0
    if length <= (frames - 1) / rate:
        assert found.first + length <= (frames - 0.49) / rate
    else:
        assert found.first == 0


def test_invalid_arguments_are_errors(tmp_path):
    path = encode(tmp_path / "a.mp4", frames=3)
    for wrong in ({"count": 0}, {"start": 1.5}, {"rate": 0.0}, {"rate_factor": -1.0}):
        with pytest.raises(ValueError, match="give count from 1") as caught:
            read_clip(path, **{"count": 2, **wrong})
        assert not isinstance(caught.value, BadFile)


def test_an_mp4_round_trips(tmp_path):
    frames = np.stack([numbered(i, 31, 47) for i in range(9)])
    frames[..., 1] //= 2
    for name in ("a.mp4", "b.mp4"):
        write_mp4(tmp_path / name, frames, 12.5)
    clip = read_clip(tmp_path / "a.mp4", count=9)
    assert clip.shape == (9, 32, 48, 3)
    assert np.abs(clip[:, :31, :47].astype(int) - frames).mean() < 3
    assert probe(tmp_path / "a.mp4").rate == pytest.approx(12.5)
    content = (tmp_path / "a.mp4").read_bytes()
    assert content == (tmp_path / "b.mp4").read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


def test_a_gif_round_trips(tmp_path):
    frames = np.stack([numbered(i) for i in range(5)])
    write_gif(tmp_path / "a.gif", frames, 8)
    assert np.array_equal(read_clip(tmp_path / "a.gif", count=5), frames)
    assert probe(tmp_path / "a.gif").rate == pytest.approx(8, rel=0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_frames_of_another_shape_are_not_written(tmp_path):
    for write in (write_mp4, write_gif):
        for frames in (np.zeros((2, 8, 8, 3), np.float32), np.zeros((0, 8, 8, 3), np.uint8)):
            with pytest.raises(ValueError, match=r"give uint8 \(t, h, w, 3\)"):
                write(tmp_path / "a", frames, 10)
        with pytest.raises(ValueError, match="rate is 0"):
            write(tmp_path / "a", np.zeros((1, 8, 8, 3), np.uint8), 0)


def test_all_frames_get_the_same_crop():
    frames = np.random.default_rng(0).integers(0, 255, (3, 40, 60, 3), np.uint8)
    crop = {"scale": 0.7, "top": 0.2, "left": 0.9}
    out = resize_crop_clip(frames, (16, 24), **crop)
    assert out.shape == (3, 16, 24, 3)
    assert all(np.array_equal(a, resize_crop(b, (16, 24), **crop)) for a, b in zip(out, frames))


# One frame at a time, and written in chunks.


@pytest.mark.parametrize("suffix", [*KINDS, "gif"])
def test_every_frame_comes_once_and_in_order(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "gif":
        write_gif(path, np.stack([numbered(i) for i in range(40)]), 10)
    else:
        encode(path)
    frames = list(frames_of(path))
    assert numbers(np.stack(frames)) == list(range(40))
    assert all(frame.dtype == np.uint8 and frame.flags.c_contiguous for frame in frames)
    assert np.array_equal(np.stack(frames), read_clip(path, count=40, start=0))


def test_frames_of_a_variable_rate_are_those_that_are_stored(tmp_path):
    path = encode(tmp_path / "a.mp4", frames=6, times=[0, 100, 200, 900, 1000, 1100])
    assert [number_of(frame) for frame in frames_of(path)] == [0, 1, 2, 3, 4, 5]


def test_frames_come_upright_and_with_square_pixels(tmp_path):
    turned = encode(tmp_path / "a.mp4", frames=3, rotation=90)
    assert [frame.shape for frame in frames_of(turned)] == [(48, 32, 3)] * 3
    assert np.array_equal(np.stack(list(frames_of(turned))), read_clip(turned, count=3))
    wide = encode(tmp_path / "b.mp4", frames=2, aspect=Fraction(2, 1))
    assert [frame.shape for frame in frames_of(wide)] == [(32, 96, 3)] * 2


def test_frames_are_decoded_as_they_are_asked_for(tmp_path):
    """The end of the file is destroyed, and the first frames do not notice."""
    path = encode(tmp_path / "a.mp4", frames=48, codec="mpeg4", gop=12)
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    content = bytearray(path.read_bytes())
    for place, size in packets[24:]:
        content[place : place + size] = bytes(size)
    path.write_bytes(content)
    found = frames_of(path)
    assert [number_of(next(found)) for _ in range(20)] == list(range(20))
    with pytest.raises(BadFile, match=r"a\.mp4"):
        list(found)


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_frames_beyond_the_caps_are_refused_before_the_first(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "gif":
        write_gif(path, np.stack([numbered(i) for i in range(20)]), 10)
    else:
        encode(path, frames=20)
    with pytest.raises(BadFile, match="more than max_frames = 5"):
        next(frames_of(path, Caps(max_frames=5)))


def cut_after(path: Path, frames: int) -> Path:
    """The file without what comes after so many frames; its header still promises them."""
    with av.open(str(path)) as container:
        ends = sorted(p.pos + p.size for p in container.demux(video=0) if p.size)
    cut = path.with_name("cut.mp4")
    cut.write_bytes(path.read_bytes()[: ends[frames - 1]])
    return cut


def test_a_video_truncated_between_two_frames_is_damaged(tmp_path):
    write_mp4(tmp_path / "a.mp4", np.stack([numbered(i) for i in range(50)]), 10)
    cut = cut_after(tmp_path / "a.mp4", 25)
    with pytest.raises(BadFile, match=r"before the 5\.0 s that its header announces"):
        list(frames_of(cut))
    content = (tmp_path / "a.mp4").read_bytes()
    cut.write_bytes(content[: content.index(b"mdat") + 4])
    with pytest.raises(BadFile, match="holds no frames"):
        list(frames_of(cut))


def test_a_long_last_frame_is_not_damage(tmp_path):
    path = tmp_path / "a.mp4"
    write_mp4(path, np.stack([numbered(i) for i in range(4)]), 0.2)  # a show of slides
    assert [number_of(frame) for frame in frames_of(path)] == [0, 1, 2, 3]
    check_clip(path, count=2)


def test_chunks_of_any_size_write_the_same_file(tmp_path):
    frames = np.stack([numbered(i, 31, 47) for i in range(11)])
    write_mp4(tmp_path / "whole.mp4", frames, 10)
    for sizes in ((11,), (1,) * 11, (5, 4, 2)):
        ends = np.cumsum(sizes)
        chunks = (frames[end - size : end] for size, end in zip(sizes, ends))
        write_mp4(tmp_path / "chunks.mp4", chunks, 10)
        assert (tmp_path / "chunks.mp4").read_bytes() == (tmp_path / "whole.mp4").read_bytes()


def test_written_chunks_are_released(tmp_path):
    seen = []

    def chunks():
        for number in range(20):
            chunk = numbered(number)[None]
            seen.append(ref(chunk))
            assert sum(found() is not None for found in seen) <= 3  # first, last and this one
            yield chunk

    write_mp4(tmp_path / "a.mp4", chunks(), 10)
    assert probe(tmp_path / "a.mp4").frames == 20


def test_nothing_is_written_where_chunks_fail_or_there_are_none(tmp_path):
    def failing():
        yield numbered(0)[None]
        raise BadFile("a.mp4", "is damaged near 1.0 s")

    with pytest.raises(BadFile, match=r"near 1\.0 s"):
        write_mp4(tmp_path / "b.mp4", failing(), 10)
    with pytest.raises(ValueError, match=r"give uint8 \(t, h, w, 3\)"):
        write_mp4(tmp_path / "b.mp4", iter([]), 10)
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_no_threads_for_a_forked_worker_to_wait_for(tmp_path: Path) -> None:
    """PyAV's own conversion starts a thread per core and keeps it; a fork does not inherit it."""
    program = (
        "import os, sys\n"
        "from quintet.media.clips.reader import read_clip\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "import av; av.VideoFrame(16, 16, 'yuv420p')\n"
        "before = count()\n"
        "frames = read_clip(sys.argv[1], count=3)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if (read_clip(sys.argv[1], count=3) == frames).all() else 1)\n"
        "print(count() - before, os.waitpid(child, 0)[1])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(encode(tmp_path / "a.mp4"))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stdout.split() == ["0", "0"], answer.stderr


def noisy(path: Path, codec: str, frames: int = 60, options: dict[str, str] | None = None) -> Path:
    """A video of moving noise, whose frames depend on those before them."""
    random = np.random.default_rng(0)
    wide = np.kron(random.integers(0, 256, (16, 40, 3)), np.ones((4, 4, 1))).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=20, options=options or {})
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = 8, 1
        stream.codec_context.bit_rate = 1_000_000
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(wide[:, number : number + 96].copy(), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def assert_windows_are_equal(path: Path, at_least: int = 24) -> int:
    """From memory and decoded; returns how many windows came from memory."""
    space = np.empty(whole_size(path, at_least=at_least), np.uint8)
    whole = read_whole(path, space, at_least=at_least)
    remembered = 0
    for start in (0.0, 0.13, 0.5, 0.77, 1.0):
        for rate, factor in ((None, 1.0), (None, 0.5), (7.0, 1.0), (60.0, 1.0), (12.5, 1 / 3)):
            for count in (4, 17):
                how: dict[str, Any] = {"count": count, "start": start, "at_least": at_least}
                how |= {"rate": rate, "rate_factor": factor}
                try:
                    decoded = read_clip(path, **how)
                except BadFile:
                    assert whole is None
                    continue
                assert np.array_equal(read_clip(path, **how, whole=whole), decoded)
                if whole is not None:
                    effective = rate if factor == 1 else (rate or whole.info.rate) * factor
                    span = window(whole.info, count=count, start=start, rate=effective)
                    remembered += excerpt(whole, span) is not None
    return remembered


@pytest.mark.by_default("mp4-libx264-options0", "webm-*", "mpg-*")
@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        ("mp4", "libx264", {}),
        ("mp4", "libx264", {"x264-params": "open-gop=1:bframes=3"}),
        ("mp4", "libx264", {"x264-params": "intra-refresh=1"}),
        ("mkv", "libx264", {"x264-params": "open-gop=1:bframes=3"}),
        ("webm", "libvpx-vp9", {}),
        ("mpg", "mpeg2video", {"bf": "2"}),
        ("ogv", "libvpx", {}),
    ],
)
def test_windows_of_a_whole_video_equal_decoded_ones(tmp_path, suffix, codec, options):
    assert assert_windows_are_equal(noisy(tmp_path / f"a.{suffix}", codec, options=options)) >= 40


def test_windows_of_unusual_whole_videos_equal_decoded_ones(tmp_path):
    for turn in (90, 180, -90):
        assert assert_windows_are_equal(encode(tmp_path / "a.mp4", rotation=turn)) >= 45
    assert assert_windows_are_equal(encode(tmp_path / "b.mp4", aspect=Fraction(2, 1))) >= 45
    times = [0, 100, 200, 300, 700, 800, 900, 950, 1900, 2000]
    for suffix in ("mp4", "mkv"):
        path = encode(tmp_path / f"c.{suffix}", frames=10, times=times, gop=4)
        assert assert_windows_are_equal(path) > 20
    assert assert_windows_are_equal(encode(tmp_path / "d.mp4", frames=1)) == 50
    assert_windows_are_equal(encode(tmp_path / "a.avi"))


def test_damaged_and_truncated_videos_are_not_taken_from_memory_where_that_differs(tmp_path):
    for suffix in ("mp4", "webm"):
        path = encode(tmp_path / f"a.{suffix}", frames=48)
        content = path.read_bytes()
        random = np.random.default_rng(3)
        for share in (1.0, 0.6):
            damaged = bytearray(content[: int(len(content) * share)])
            if share == 1:
                for at in random.integers(len(damaged) // 4, len(damaged), 20):
                    damaged[at] = 255 - damaged[at]
            path.write_bytes(damaged)
            with suppress(BadFile):
                assert_windows_are_equal(path)


def test_long_videos_gifs_and_those_without_space_are_not_decoded_as_a_whole(tmp_path):
    write_gif(tmp_path / "a.gif", np.stack([numbered(i) for i in range(4)]), 10)
    assert whole_size(tmp_path / "a.gif", at_least=24) == 0
    assert whole_size(encode(tmp_path / "a.mp4", frames=52, rate=5), at_least=24) == 0
    path = encode(tmp_path / "b.mp4", frames=45, rate=5)
    size = whole_size(path, at_least=24)
    assert size == 46 * (3 * 24 * 36 + 8)
    assert read_whole(path, np.empty(size, np.uint8), at_least=24) is not None
    assert read_whole(path, np.empty(size // 2, np.uint8), at_least=24) is None

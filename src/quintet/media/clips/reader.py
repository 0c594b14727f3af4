"""Reading of videos, uint8 (t, h, w, 3); headers are checked before decoding.

Only the requested frames are decoded, from the key frame before them. FFmpeg receives bytes, and
one demuxer selected by the first of them, so a file cannot refer to other files or URLs. PyAV
(`quintet[video]`) is imported on first use; GIFs need only Pillow.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quintet.media import pixels
from quintet.media.clips import gifs
from quintet.media.clips.rgb import converter, quarters, shown_size
from quintet.media.clips.windows import (
    Caps,
    ClipInfo,
    Picker,
    Whole,
    Window,
    check_info,
    excerpt,
    window,
)
from quintet.media.errors import BadFile, OutOfRange, check_file, decoding
from quintet.media.pixels import Pixels
from quintet.media.shards.member import as_path

if TYPE_CHECKING:
    from av.container.input import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

SUFFIXES = (
    ".mp4", ".m4v", ".webm", ".mov", ".mkv", ".avi", ".mpg", ".mpeg", ".ogv", ".gif"
)  # fmt: skip
UNREAD = (".wmv", ".flv", ".f4v", ".ts", ".mts", ".m2ts", ".3gp", ".vob", ".asf", ".rm", ".m2v")
"""Video formats that are not read; their files are counted."""
CODECS = (
    "h264,hevc,av1,libdav1d,vp8,vp9,libvpx,libvpx-vp9,mpeg1video,mpeg2video,mpeg4,msmpeg4v2,msmpeg4,"
    "h263,flv,wmv1,wmv2,wmv3,vc1,mjpeg,png,theora,prores,dnxhd,dvvideo,ffv1,huffyuv,ffvhuff,"
    "utvideo,rawvideo,qtrle,cinepak,svq3"
)
"""Allowed decoders: the common ones, not the hundreds that exist."""
PATIENCE = 3000
"""Maximum number of frames decoded in search of the next requested one."""
SEEKS = (0.0, 10.0, inf)
"""Seconds before a window at which decoding begins. Frames after a key frame may depend on those
before it, so the nearest one is not always early enough."""

_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")


class _Source(NamedTuple):
    path: Path
    family: str
    caps: Caps


class _Video(NamedTuple):
    container: "InputContainer"
    stream: "VideoStream"
    info: ClipInfo


# Formats.


def _family(path: Path) -> str:
    """The format by the first bytes, not by the name."""
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})", "check the path") from error
    if head[:3] == b"GIF":
        return "gif"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:] == b"AVI ":
        return "avi"
    if head[4:8] in _BOXES:
        return "mov"
    if head[:4] == b"OggS":
        return "ogg"
    if head[:4] in (b"\0\0\1\xba", b"\0\0\1\xb3"):
        return "mpeg" if head[3] == 0xBA else "mpegvideo"
    reason = "is none of MP4, MOV, WebM, MKV, AVI, MPEG, Ogg and GIF, or its header is damaged"
    raise BadFile(path, reason, "remove it or encode it again as MP4")


# Headers.


@contextmanager
def _opened(source: _Source) -> Generator[_Video, None, None]:
    """Open a file and check its header."""
    try:
        import av
        from av.error import FFmpegError
    except ImportError as error:
        raise ImportError("videos need PyAV: pip install 'quintet[video]'") from error
    path, family, caps = source
    limits = {"max_pixels": str(caps.max_pixels), "threads": "1"}
    # Without protocols, a playlist or a reference inside the file opens nothing else.
    options = {"protocol_whitelist": "none", "codec_whitelist": CODECS, **limits}
    with (
        decoding(path, "av", FFmpegError, MemoryError),
        path.open("rb") as file,
        av.open(file, "r", family, options, **_tolerant(av)) as container,
    ):
        stream = _video_stream(path, container, caps)
        yield _Video(container, stream, _describe(path, container, stream, caps))


def _tolerant(av: Any) -> dict[str, Any]:
    """Replace invalid UTF-8 in titles; PyAV 19 does so itself and has no such keyword."""
    return {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}


def _video_stream(path: Path, container: "InputContainer", caps: Caps) -> "VideoStream":
    """The first stream that is not a cover image, decoded by one thread."""
    from av.stream import Disposition

    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if not streams:
        raise BadFile(path, "holds no video", "remove it from the data")
    context = streams[0].codec_context
    name = getattr(context, "name", "something unknown")  # context is None without a decoder
    if name not in CODECS.split(","):
        limit, remedy = f"encoded as {name}, which is not supported", "encode it as H.264 or VP9"
        raise OutOfRange(path, "", limit, remedy)
    context.thread_count = 1
    context.options = {"max_pixels": str(caps.max_pixels)}
    return streams[0]


def _describe(
    path: Path, container: "InputContainer", stream: "VideoStream", caps: Caps
) -> ClipInfo:
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    seconds = 0.0
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration:
        seconds = container.duration / 1e6
    info = ClipInfo(stream.frames or None, seconds, rate, stream.height, stream.width)
    check_info(path, info, caps)
    return info


def source_of(path: Path, caps: Caps) -> _Source:
    check_file(path, caps.max_bytes, "cut the video")
    return _Source(path, _family(path), caps)


@contextmanager
def ready(source: _Source) -> Generator[_Video, None, None]:
    """Open a file at its start, with length and rate from the header or by counting packets."""
    with _opened(source) as video:
        if video.info.seconds > 0 and 0 < video.info.rate <= 1000:
            yield video
            return
        info = _measure(source, video)
    with _opened(source) as video:
        yield video._replace(info=info)


def probe(path: Path | str, caps: Caps = Caps()) -> ClipInfo:  # noqa: B008
    """Size, length and rate from the header; if incomplete, by counting packets."""
    source = source_of(as_path(path), caps)
    if source.family == "gif":
        return gifs.probe(source.path, caps)
    with ready(source) as video:
        return video.info


def _measure(source: _Source, video: _Video) -> ClipInfo:
    """Count packets without decoding; leaves the file at its end."""
    last, frames = 0.0, 0
    origin = _origin(video.stream)
    for packet in _packets(video):
        if packet.size == 0:
            continue
        frames += 1
        if packet.pts is not None:
            last = max(last, float(packet.pts * packet.time_base) - origin)
        check_info(source.path, video.info._replace(frames=frames, seconds=last), source.caps)
    if frames == 0:
        raise BadFile(source.path, "holds no frames", "remove it or copy it again")
    rate = (frames - 1) / last if last > 0 else 25.0
    rate = min(max(rate, 0.01), 1000.0)
    return video.info._replace(frames=frames, seconds=max(last, 0.0) + 1 / rate, rate=rate)


def _origin(stream: "VideoStream") -> float:
    """The time of the first frame, if the header has it."""
    start, base = stream.start_time, stream.time_base
    return float(start * base) if start is not None and base is not None else 0.0


def _packets(video: _Video) -> "Iterator[Packet[VideoStream]]":
    """Packets up to the end, or to where the container is damaged."""
    from av.error import InvalidDataError

    with suppress(InvalidDataError):
        yield from video.container.demux(video.stream)


def _frames(video: _Video) -> "Iterator[tuple[VideoFrame | None, float | None]]":
    """Each frame with its time; None instead of a frame that cannot be read."""
    from av.error import InvalidDataError

    base, last, broken = video.stream.time_base or Fraction(1, 1000), None, False
    for packet in _packets(video):
        time = None if packet.pts is None else float(packet.pts * base)
        if packet.size == 0 and packet.pts is not None:  # Theora repeats the previous frame so
            if last is not None:
                yield last, time
            continue
        try:
            frames: Any = packet.decode()
        except InvalidDataError:
            broken = broken or packet.is_keyframe
            yield None, time
            continue
        for frame in frames:
            broken = broken and not frame.key_frame  # guesses without the key frame
            last = None if frame.is_corrupt or broken else frame
            yield last, frame.time


def timed(video: _Video, seek: float) -> "Iterator[tuple[VideoFrame | None, float]]":
    """Frames from the key frame before `seek`, with times relative to the first frame; None for one
    that cannot be read."""
    from av.error import FFmpegError

    container, stream, info = video
    base, origin = stream.time_base or Fraction(1, 1000), _origin(stream)
    if seek > 0:
        with suppress(FFmpegError):  # without an index the file stays at its start
            container.seek(int((seek + origin) / base), stream=stream)
    last = -1 / info.rate
    for frame, time in _frames(video):
        last = last + 1 / info.rate if time is None else time - origin
        yield frame, last


def slack_of(video: _Video) -> float:
    """Seconds by which a time stamp may be off: it is rounded to the container's ticks."""
    return min(max(float(video.stream.time_base or 0), 1e-6), 0.3 / video.info.rate)


def _pick(path: Path, video: _Video, span: Window, seek: float) -> Picker["VideoFrame"]:
    """Decode from `seek` until the window is full or the file ends."""
    picker = Picker["VideoFrame"](span, slack_of(video))
    for frame, time in timed(video, seek):
        picker.add(frame, time)
        if picker.full or (seek > 0 and picker.times and picker.late):
            return picker
        if picker.waited > PATIENCE:
            reason = f"has no frame at {span.first:.1f} s within {PATIENCE:,} decoded frames"
            raise BadFile(path, reason, "encode it again with a key frame every few seconds")
    picker.finish()
    return picker


def _read(
    source: _Source,
    choose: Callable[[ClipInfo], Window],
    at_least: int | None,
    *,
    slide: bool = True,
) -> Pixels:
    for before in SEEKS:
        with ready(source) as video:
            span = choose(video.info)
            seek = max(0.0, span.first - before)
            picker = _pick(source.path, video, span, seek)
            if seek > 0 and (picker.late or picker.damaged):
                continue
            if picker.full or not slide or span.first <= 0 or not picker.times:
                return _stack(source.path, picker, video.stream, at_least)
        # The file is shorter than its header says.
        return _read(source, lambda _, picker=picker: picker.earlier(), at_least, slide=False)
    raise AssertionError("the last attempt begins at the start of the file")


# Pixels.


def _stack(
    path: Path, picker: Picker["VideoFrame"], stream: "VideoStream", at_least: int | None
) -> Pixels:
    if not picker.picked:
        raise BadFile(path, "holds no frames", "remove it or copy it again")
    if picker.damaged:
        reason = f"is damaged near {picker.window.first:.1f} s"
        raise BadFile(path, reason, "remove it or copy it again")
    width, height = size = shown_size(stream, at_least)
    out = np.empty((picker.window.frames, height, width, 3), np.uint8)
    to_rgb = converter(size)
    before = None
    for index, frame in enumerate(picker.picked):
        if frame is before:
            out[index] = out[index - 1]
        else:
            out[index] = to_rgb(frame)
        before = frame
    out[len(picker.picked) :] = out[len(picker.picked) - 1]
    return np.ascontiguousarray(np.rot90(out, quarters(picker.picked[0]), (1, 2)))


# Clips.


def read_clip(
    path: Path | str,
    *,
    count: int,
    start: float = 0.5,
    rate: float | None = None,
    rate_factor: float = 1.0,
    at_least: int | None = None,
    caps: Caps = Caps(),  # noqa: B008
    whole: Whole | None = None,
) -> Pixels:
    """`count` frames, upright, with square pixels: uint8 (count, h, w, 3).

    `start`, 0..1, is the position of the window among those that fit. `rate` is in frames per
    second; None takes consecutive frames. `rate_factor` multiplies either: 0.5 takes every second
    frame. A clip that is too short is padded with its last frame. With `at_least` large frames are
    reduced while decoding, as long as the shorter side has at least so many pixels. With `whole`,
    from `read_whole`, the same frames are taken from memory.
    """
    if count < 1 or not 0 <= start <= 1 or (rate is not None and rate <= 0) or rate_factor <= 0:
        values = f"count {count}, start {start}, rate {rate}, rate_factor {rate_factor}"
        raise ValueError(f"{values}: give count from 1, start in 0..1, the others above 0")

    def choose(info: ClipInfo) -> Window:
        effective = rate if rate_factor == 1 else (rate or info.rate) * rate_factor
        return window(info, count=count, start=start, rate=effective)

    remembered = None if whole is None else excerpt(whole, choose(whole.info))
    if remembered is not None:
        return remembered
    source = source_of(as_path(path), caps)
    if source.family == "gif":
        return gifs.read(source.path, caps, choose, start)
    return _read(source, choose, at_least)


def frames_of(path: Path | str, caps: Caps = Caps()) -> Iterator[Pixels]:  # noqa: B008
    """Every frame (h, w, 3), upright, one at a time, in constant memory."""
    source = source_of(as_path(path), caps)
    if source.family == "gif":
        yield from gifs.frames_of(source.path, caps)
        return
    with ready(source) as video:
        to_rgb = converter(shown_size(video.stream, None))
        count, lost, time = 0, 0, 0.0
        for frame, time in timed(video, 0.0):
            if frame is None:
                lost += 1
                if lost > 1 + 0.1 * count:
                    raise BadFile(source.path, f"is damaged near {time:.1f} s", "copy it again")
                continue
            count += 1
            if count > caps.max_frames:
                reason = f"has more than max_frames = {caps.max_frames:,} frames"
                raise BadFile(source.path, reason, "cut the video")
            yield np.ascontiguousarray(np.rot90(to_rgb(frame), quarters(frame)))
        if count == 0:
            raise BadFile(source.path, "holds no frames", "remove it or copy it again")
        if count < 0.9 * (video.info.frames or count + 1):  # the last frame may be long
            _check_end(source.path, video.info, time)


def _check_end(path: Path, info: ClipInfo, last: float) -> None:
    """Raise BadFile if the last frame is long before the end announced by the header."""
    end = info.seconds
    if last < end - 1 / info.rate - max(1.0, 0.1 * end):
        reason = f"ends at {last:.1f} s, before the {end:.1f} s that its header announces"
        raise BadFile(path, reason, "copy it again, or encode it again")


def check_clip(path: Path | str, *, count: int, caps: Caps = Caps()) -> None:  # noqa: B008
    """Read the first and the last window, and check that the file is not truncated."""
    source = source_of(as_path(path), caps)
    read_clip(path, count=count, start=0.0, caps=caps)
    read_clip(path, count=count, start=1.0, caps=caps)
    if source.family == "gif":
        return
    with ready(source) as video:
        at_end = window(video.info, count=1, start=1.0, rate=1.0)
        picker = _pick(source.path, video, at_end, seek=at_end.first)
        _check_end(source.path, video.info, picker.times[-1] if picker.times else 0.0)


def resize_crop_clip(
    frames: Pixels,
    size: tuple[int, int],
    *,
    scale: float = 1.0,
    top: float = 0.5,
    left: float = 0.5,
) -> Pixels:
    """`resize_crop` of every frame, with one crop for all: uint8 (t, *size, 3)."""
    crop = {"scale": scale, "top": top, "left": left}
    return np.stack([pixels.resize_crop(frame, size, **crop) for frame in frames])

"""Writing clips: H.264 for browsers, and GIFs, which PyAV would give one palette for all."""

from fractions import Fraction
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from quintet.media.folder import write_aside
from quintet.media.pixels import Pixels


def _check_frames(frames: Pixels, rate: float) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise ValueError(f"frames are {frames.dtype} {frames.shape}: give uint8 (t, h, w, 3)")
    if not 0 < rate <= 1000:
        raise ValueError(f"rate is {rate}: give frames per second above 0 and up to 1000")


def write_mp4(path: Path | str, frames: Pixels, rate: float) -> None:
    """H.264 that every browser plays; odd sizes get a doubled last row or column.

    The same frames give the same bytes; the file is complete or absent.
    """
    _check_frames(frames, rate)
    _, height, width, _ = frames.shape
    even = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    # A folder, because the header is moved to the front by reading the finished file again.
    with TemporaryDirectory() as folder:
        aside = Path(folder, "clip.mp4")
        _encode(aside, even, Fraction(rate).limit_denominator(1001))
        write_aside(path, aside.read_bytes())


def _encode(path: Path, frames: Pixels, rate: Fraction) -> None:
    import av
    from av.video.reformatter import Colorspace

    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "17", "threads": "1"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = 1  # BT.709
        for array in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_gif(path: Path | str, frames: Pixels, rate: float) -> None:
    """An endless GIF; it counts time in hundredths of a second, so a rate above 50 becomes 50."""
    from PIL import Image

    _check_frames(frames, rate)
    first, *rest = (Image.fromarray(np.ascontiguousarray(frame)) for frame in frames)
    content = BytesIO()
    first.save(
        content,
        format="GIF",
        save_all=True,
        append_images=rest,
        duration=max(20, round(100 / rate) * 10),
        loop=0,
    )
    write_aside(path, content.getvalue())

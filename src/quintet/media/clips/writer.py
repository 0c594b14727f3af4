"""Writing of clips: H.264 and lossless FFV1 with PyAV, GIFs with Pillow and a palette per frame."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from quintet.files import atomic_write
from quintet.media.pixels import Pixels


def _check_frames(frames: Pixels, rate: float) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise ValueError(f"frames are {frames.dtype} {frames.shape}: give uint8 (t, h, w, 3)")
    if not 0 < rate <= 1000:
        raise ValueError(f"rate is {rate}: give frames per second above 0 and up to 1000")


def write_mp4(path: Path | str, frames: Pixels | Iterable[Pixels], rate: float) -> None:
    """Write H.264 for all browsers; the last row or column of odd sizes is repeated.

    Frames (t, h, w, 3), or an iterable of chunks of them. The same frames give the same bytes; the
    file is complete or absent.
    """
    with mp4_writer(path, rate) as append:
        for chunk in [frames] if isinstance(frames, np.ndarray) else frames:
            append(chunk)


@contextmanager
def mp4_writer(path: Path | str, rate: float) -> Generator[Callable[[Pixels], None]]:
    """`write_mp4` in parts: yields a function that appends frames (t, h, w, 3)."""
    # A real file, because FFmpeg reads it again to move the header to the front.
    with TemporaryDirectory() as folder:
        partial = Path(folder, "clip.mp4")
        with _encoder(partial, rate) as append:
            yield append
        atomic_write(path, partial.read_bytes())


@contextmanager
def _encoder(path: Path, rate: float) -> Generator[Callable[[Pixels], None]]:
    try:
        import av
        from av.video.reformatter import Colorspace
    except ImportError as error:
        raise ImportError("writing mp4 needs PyAV: pip install 'quintet[video]'") from error
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        stream: Any = None

        def append(frames: Pixels) -> None:
            nonlocal stream
            _check_frames(frames, rate)
            stream = stream or _stream(container, frames, rate)
            for array in frames:
                frame = av.VideoFrame.from_ndarray(_even(array), format="rgb24")
                frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
                container.mux(stream.encode(frame))

        yield append
        if stream is None:
            raise ValueError(f"{path.name}: there are no frames; give uint8 (t, h, w, 3)")
        container.mux(stream.encode())


def _stream(container: Any, frames: Pixels, rate: float) -> Any:
    pace = Fraction(rate).limit_denominator(1001)
    # One thread: the bytes must not depend on the number of cores.
    stream = container.add_stream("libx264", rate=pace, options={"crf": "17", "threads": "1"})
    stream.height, stream.width = (side + side % 2 for side in frames.shape[1:3])
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.colorspace = context.color_primaries = context.color_trc = 1  # BT.709
    return stream


def _even(frame: Pixels) -> Pixels:
    height, width, _ = frame.shape
    padded = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(padded)


def write_lossless(path: Path | str, frames: Pixels, rate: float) -> None:
    """Write frames (t, h, w, 3) as FFV1 in Matroska (.mkv), without loss."""
    _check_frames(frames, rate)
    try:
        import av
    except ImportError as error:
        raise ImportError("writing videos needs PyAV: pip install 'quintet[video]'") from error
    content = BytesIO()
    with av.open(content, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream("ffv1", rate=Fraction(rate).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for array in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")
            container.mux(stream.encode(frame.reformat(format="bgr0")))
        container.mux(stream.encode())
    atomic_write(path, content.getvalue())


def write_gif(path: Path | str, frames: Pixels, rate: float) -> None:
    """Write a looping GIF; durations are in 1/100 s, so rates above 50 become 50."""
    from PIL import Image

    _check_frames(frames, rate)
    # Median cut, the default of Pillow, is 17 times slower: 7 s for 17 frames of a sheet.
    first, *rest = (
        Image.fromarray(np.ascontiguousarray(frame)).quantize(method=Image.Quantize.FASTOCTREE)
        for frame in frames
    )
    content = BytesIO()
    first.save(
        content,
        format="GIF",
        save_all=True,
        append_images=rest,
        duration=max(20, round(100 / rate) * 10),
        loop=0,
    )
    atomic_write(path, content.getvalue())

"""Conversion of decoded frames to upright RGB with square pixels."""

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from quintet.media.pixels import Extent, Pixels

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def converter(size: Extent) -> Callable[["VideoFrame"], Pixels]:
    """Return a converter of frames to RGB of this size.

    PyAV's own converter starts a thread per core (17) and outlives the clip (19): a worker forked
    after its parent has read a clip would wait for ever for threads that it did not inherit.
    """
    import av
    from av.video.reformatter import VideoReformatter

    width, height = size
    reformat = VideoReformatter().reformat
    one_thread = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}

    def to_rgb(frame: "VideoFrame") -> Pixels:
        # Area averaging is faster than filters and does not alias, but enlarges to blocks.
        how = "AREA" if width * height < frame.width * frame.height else "BILINEAR"
        rgb = reformat(frame, width, height, "rgb24", interpolation=how, **one_thread)
        return np.asarray(rgb.to_ndarray(), np.uint8)

    return to_rgb


def quarters(frame: "VideoFrame") -> int:
    """Quarter turns to the upright orientation."""
    return round(frame.rotation / 90) % 4


def shown_size(stream: "VideoStream", at_least: int | None) -> Extent:
    """Size with square pixels, reduced to what is needed."""
    width, height = stream.width, stream.height
    aspect = float(stream.sample_aspect_ratio or 1)
    if 0.25 <= aspect <= 4:
        width = max(1, round(width * aspect))
    share = 1.0 if at_least is None else min(1.0, at_least / min(width, height))
    return Extent(ceil(width * share), ceil(height * share))

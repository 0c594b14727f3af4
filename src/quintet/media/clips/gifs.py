"""Reading of animated GIFs with Pillow, which handles transparency and frame durations."""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintet.media import pixels
from quintet.media.clips.windows import Caps, ClipInfo, Window, check_info
from quintet.media.pixels import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_DURATION = 0.1
"""Seconds of a frame without a duration, as in browsers."""


@contextmanager
def _opened(path: Path, caps: Caps) -> "Generator[tuple[Image, list[float]], None, None]":
    """The image, and the start times of its frames with the end of the last."""
    with pixels.opened(path, caps.max_pixels, caps.max_bytes) as image:
        yield image, _times(path, caps, image)


def _times(path: Path, caps: Caps, image: "Image") -> list[float]:
    times = [0.0]
    while True:
        try:
            image.seek(len(times) - 1)
        except EOFError:
            return times
        shown = float(image.info.get("duration") or 0) / 1000
        times.append(times[-1] + (shown or DEFAULT_DURATION))
        check_info(path, _info(image, times), caps)


def _info(image: "Image", times: list[float]) -> ClipInfo:
    frames, seconds = len(times) - 1, times[-1]
    return ClipInfo(frames, seconds, frames / seconds, image.height, image.width)


def probe(path: Path, caps: Caps) -> ClipInfo:
    with _opened(path, caps) as (image, times):
        return _info(image, times)


def frames_of(path: Path, caps: Caps) -> Iterator[Pixels]:
    """Every frame (h, w, 3), one at a time."""
    with _opened(path, caps) as (image, times):
        for index in range(len(times) - 1):
            image.seek(index)
            yield pixels.to_rgb(image)


def read(path: Path, caps: Caps, choose: Callable[[ClipInfo], Window], start: float) -> Pixels:
    with _opened(path, caps) as (image, times):
        count, first, step = choose(_info(image, times))
        frames = len(times) - 1
        if step is None:
            begin = round(start * max(0, frames - count))
            chosen = [min(begin + i, frames - 1) for i in range(count)]
        else:
            moments = [first + i * step + 1e-3 for i in range(count)]  # GIFs count in 1/100 s
            chosen = [min(bisect_right(times, moment), frames) - 1 for moment in moments]
        decoded: dict[int, Pixels] = {}
        for index in dict.fromkeys(chosen):
            image.seek(index)
            decoded[index] = pixels.to_rgb(image)
        return np.stack([decoded[index] for index in chosen])

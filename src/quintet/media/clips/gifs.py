"""Moving GIFs by Pillow, which knows their transparency and the time of each frame."""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintet.media import pixels
from quintet.media.clips.windows import Caps, ClipInfo, Wanted, check_info
from quintet.media.pixels import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

UNTIMED = 0.1
"""Seconds that a frame is shown which says nothing of it, as in browsers."""


@contextmanager
def _opened(path: Path, caps: Caps) -> "Generator[tuple[Image, list[float]], None, None]":
    """The picture, and the times at which its frames begin, with the end of the last."""
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
        times.append(times[-1] + (shown or UNTIMED))
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


def read(path: Path, caps: Caps, choose: Callable[[ClipInfo], Wanted], start: float) -> Pixels:
    with _opened(path, caps) as (image, times):
        count, first, step = choose(_info(image, times))
        frames = len(times) - 1
        if step is None:
            begin = round(start * max(0, frames - count))
            chosen = [min(begin + i, frames - 1) for i in range(count)]
        else:
            moments = [first + i * step + 1e-3 for i in range(count)]  # GIFs count hundredths
            chosen = [min(bisect_right(times, moment), frames) - 1 for moment in moments]
        found: dict[int, Pixels] = {}
        for index in dict.fromkeys(chosen):
            image.seek(index)
            found[index] = pixels.to_rgb(image)
        return np.stack([found[index] for index in chosen])

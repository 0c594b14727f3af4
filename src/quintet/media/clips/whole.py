"""Short videos decoded as a whole, from which `read_clip` takes any window."""

from contextlib import suppress
from math import ceil, prod
from pathlib import Path

import numpy as np

from quintet.media.clips import gifs
from quintet.media.clips.reader import PATIENCE, ready, slack_of, source_of, timed
from quintet.media.clips.rgb import converter, quarters, shown_size
from quintet.media.clips.windows import Caps, Whole
from quintet.media.errors import BadFile
from quintet.media.pixels import Pixels
from quintet.media.shards.member import as_path

SHORT = 10.0
LARGEST = 1 << 28
"""Seconds and bytes of a video that may be decoded as a whole."""


def whole_size(path: Path | str, *, at_least: int, caps: Caps = Caps()) -> int:  # noqa: B008
    """Bytes of all frames and their times, from the header; 0 for a video that is longer than
    `SHORT` or larger than `LARGEST`, and for a GIF."""
    source = source_of(as_path(path), caps)
    if source.family == "gif":
        gifs.probe(source.path, caps)
        return 0
    with ready(source) as video:
        frames = video.info.frames or ceil(video.info.seconds * video.info.rate)
        width, height = shown_size(video.stream, at_least)
        size = (frames + 1) * (3 * width * height + 8)
        return size if video.info.seconds <= SHORT and size <= LARGEST else 0


def read_whole(
    path: Path | str,
    space: Pixels,
    *,
    at_least: int,
    caps: Caps = Caps(),  # noqa: B008
) -> Whole | None:
    """All frames, written to `space` (n,) if there is enough. None if a window may depend on where
    decoding begins: the video is damaged, or has no time stamps or several orientations."""
    times: list[float] = []
    turns, frames = 0, space[:0]
    with suppress(BadFile), ready(source_of(as_path(path), caps)) as video:
        width, height = size = shown_size(video.stream, at_least)
        most = min(PATIENCE, len(space) // (3 * width * height))
        to_rgb = converter(size)
        for frame, time in timed(video, 0.0):
            if frame is None or frame.pts is None or (times and time <= times[-1]):
                return None
            if not times:
                turns = quarters(frame)
                shape = (width, height, 3) if turns % 2 else (height, width, 3)
                frames = space[: most * prod(shape)].reshape(most, *shape)
            if quarters(frame) != turns or len(times) == most:
                return None
            frames[len(times)] = np.rot90(to_rgb(frame), turns)
            times.append(time)
        info = video.info._replace(frames=len(times))
        return Whole(info, slack_of(video), times, frames[: len(times)]) if times else None
    return None

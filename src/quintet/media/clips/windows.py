"""Which frames of a clip are wanted, and which of those that come are they."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quintet.media.errors import BadFile

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


class Caps(NamedTuple):
    """Files beyond any of these are refused before anything is decoded."""

    max_pixels: int = 36_000_000
    max_bytes: int = 4_000_000_000
    max_seconds: float = 14_400.0
    max_frames: int = 1_000_000


class ClipInfo(NamedTuple):
    """What a header says; height and width as stored, before a rotation is undone."""

    frames: int | None
    seconds: float
    rate: float
    height: int
    width: int


def check_info(path: Path, info: ClipInfo, caps: Caps) -> None:
    if info.width < 1 or info.height < 1:
        reason = f"announces no size, or one beyond max_pixels = {caps.max_pixels:,}"
        raise BadFile(path, reason, "shrink the video or remove it from the data")
    if info.width * info.height > caps.max_pixels:
        size = f"{info.width} x {info.height}"
        reason = f"is {size} pixels, more than max_pixels = {caps.max_pixels:,}"
        raise BadFile(path, reason, "shrink the video or raise max_pixels")
    if info.seconds > caps.max_seconds:
        reason = f"lasts {info.seconds:,.0f} s, more than max_seconds = {caps.max_seconds:,.0f}"
        raise BadFile(path, reason, "cut the video or raise max_seconds")
    if (info.frames or 0) > caps.max_frames:
        reason = f"has {info.frames:,} frames, more than max_frames = {caps.max_frames:,}"
        raise BadFile(path, reason, "cut the video or raise max_frames")


class Wanted(NamedTuple):
    """Which frames: so many, `step` seconds apart, or as they are stored where it is None."""

    frames: int
    first: float
    step: float | None


def window(info: ClipInfo, *, count: int, start: float, rate: float | None) -> Wanted:
    """The window at `start`, 0..1, among those that fit into the clip, on a frame of the file."""
    step = 1 / (rate or info.rate)
    room = max(0.0, info.seconds - 1 / info.rate - (count - 1) * step)
    first = round(start * room * info.rate) / info.rate
    return Wanted(count, first, None if rate is None else step)


class Picker:
    """Takes frames in the order of time, and keeps those that are on show when one is wanted."""

    def __init__(self, wanted: Wanted, slack: float) -> None:
        self.wanted = wanted
        self.slack = slack  # time stamps are rounded to the container's ticks
        self.times: list[float] = []
        self.picked: list[VideoFrame] = []
        self.waited = 0
        self._shown: VideoFrame | None = None

    @property
    def full(self) -> bool:
        return len(self.picked) >= self.wanted.frames

    @property
    def late(self) -> bool:
        """Seeking has led past the window, or past the end."""
        return not self.times or self.times[0] > self.wanted.first + self.slack

    def _due(self) -> float:
        return self.wanted.first + len(self.picked) * (self.wanted.step or 0.0)

    def add(self, frame: "VideoFrame", time: float) -> None:
        if self._shown is not None:
            self._keep(time - self.slack)
        self._shown = frame
        self.times.append(time)
        self.waited += 1

    def _keep(self, until: float) -> None:
        """The frame on show is kept for every moment before `until` that wants it."""
        assert self._shown is not None
        consecutive = self.wanted.step is None
        while not self.full and (self._due() < until or (consecutive and self.picked)):
            self.picked.append(self._shown)
            self.waited = 0
            if consecutive:
                return

    def finish(self) -> None:
        """There are no more frames; the last one is on show for a moment yet."""
        if self._shown is not None:
            self._keep(self.times[-1] + 2 * self.slack)

    def earlier(self) -> Wanted:
        """The last window that the frames there are can fill."""
        count, _, step = self.wanted
        if step is not None:
            first = max(0.0, self.times[-1] - (count - 1) * step)
        else:
            first = self.times[-count] if len(self.times) >= count else 0.0
        return self.wanted._replace(first=first)

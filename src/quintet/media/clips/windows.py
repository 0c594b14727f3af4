"""Windows of frames in a clip, and the selection of decoded frames for a window."""

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from quintet.media.errors import BadFile, OutOfRange
from quintet.media.pixels import Pixels

Frame = TypeVar("Frame")


class Caps(NamedTuple):
    """Limits that are checked before decoding."""

    max_pixels: int = 36_000_000
    max_bytes: int = 4_000_000_000
    max_seconds: float = 14_400.0
    max_frames: int = 1_000_000


class ClipInfo(NamedTuple):
    """Content of a header; height and width as stored, before rotation."""

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
        reason, limit = (
            f"is {info.width} x {info.height} pixels",
            f"max_pixels = {caps.max_pixels:,}",
        )
        remedy = "shrink the video or raise max_pixels"
        raise OutOfRange(path, reason, f"more than {limit}", remedy, info.width * info.height)
    if info.seconds > caps.max_seconds:
        reason, limit = (
            f"lasts {info.seconds:,.0f} s",
            f"more than max_seconds = {caps.max_seconds:,.0f}",
        )
        raise OutOfRange(path, reason, limit, "cut the video or raise max_seconds", info.seconds)
    if (info.frames or 0) > caps.max_frames:
        reason, limit = f"has {info.frames:,} frames", f"more than max_frames = {caps.max_frames:,}"
        raise OutOfRange(path, reason, limit, "cut the video or raise max_frames", info.frames)


class Window(NamedTuple):
    """A number of frames, `step` seconds apart, or consecutive ones if it is None."""

    frames: int
    first: float
    step: float | None


def window(info: ClipInfo, *, count: int, start: float, rate: float | None) -> Window:
    """The window at `start`, 0..1, among those that fit into the clip, aligned to a frame."""
    step = 1 / (rate or info.rate)
    room = max(0.0, info.seconds - 1 / info.rate - (count - 1) * step)
    first = round(start * room * info.rate) / info.rate
    return Window(count, first, None if rate is None else step)


class Picker(Generic[Frame]):
    """Receives frames in temporal order and selects those of a window."""

    def __init__(self, window: Window, slack: float) -> None:
        self.window = window
        self.slack = slack
        self.times: list[float] = []
        self.picked: list[Frame] = []
        self.waited = 0
        self.lost = 0  # unreadable frames since the start of the window
        self._current: Frame | None = None

    @property
    def damaged(self) -> bool:
        """Whether too many frames of the window are unreadable to skip them."""
        return self.lost > self.window.frames // 4

    @property
    def full(self) -> bool:
        return len(self.picked) >= self.window.frames

    @property
    def late(self) -> bool:
        """Whether seeking has skipped the start of the window."""
        return not self.times or self.times[0] > self.window.first + self.slack

    def _due(self) -> float:
        return self.window.first + len(self.picked) * (self.window.step or 0.0)

    def add(self, frame: Frame | None, time: float) -> None:
        """Add the next frame, or None if it cannot be read."""
        self.waited += 1
        if frame is None:
            self.lost += time >= self.window.first - self.slack
            return
        if self._current is not None:
            self._select(time - self.slack)
        self._current = frame
        self.times.append(time)

    def _select(self, until: float) -> None:
        """Select the current frame for every time of the window before `until`."""
        assert self._current is not None
        consecutive = self.window.step is None
        while not self.full and (self._due() < until or (consecutive and self.picked)):
            self.picked.append(self._current)
            self.waited = 0
            if consecutive:
                return

    def finish(self) -> None:
        """Select the last frame if it is due."""
        if self._current is not None:
            self._select(self.times[-1] + 2 * self.slack)

    def earlier(self) -> Window:
        """The last window that the existing frames can fill."""
        count, _, step = self.window
        if step is not None:
            first = max(0.0, self.times[-1] - (count - 1) * step)
        else:
            first = self.times[-count] if len(self.times) >= count else 0.0
        return self.window._replace(first=first)


class Whole(NamedTuple):
    """A video decoded as a whole: content of the header, and frames with their times."""

    info: ClipInfo
    slack: float
    times: Sequence[float]
    frames: Pixels


def excerpt(whole: Whole, span: Window) -> Pixels | None:
    """The frames that would be decoded; None if the file is shorter than its header says: which
    earlier window is read then depends on where decoding begins."""
    picker = Picker[int](span, whole.slack)
    for index, time in enumerate(whole.times):
        picker.add(index, time)
        if picker.full:
            break
    else:
        picker.finish()
    if not picker.picked or (not picker.full and span.first > 0):
        return None
    padding = [picker.picked[-1]] * (span.frames - len(picker.picked))
    return whole.frames[[*picker.picked, *padding]]

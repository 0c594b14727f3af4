"""Settings that the families of clips share. Imports no torch: help must be instant."""

from dataclasses import dataclass
from typing import Literal

from quintet.engine.config import require, require_at_least, require_choices
from quintet.shared.tokenizer.config import PixelDataConfig


@dataclass(frozen=True, kw_only=True)
class VideoDataConfig(PixelDataConfig):
    """Clips, images and augmentation."""

    frames: int = 17
    """Frames per clip; an image is repeated."""
    fps: float | None = None
    """Frames per second; None keeps the rate of each file. Files with fewer repeat frames."""
    min_rate_factor: float = 0.5
    """Training clips may skip frames, down to this fraction of the rate; 1 skips none."""
    pan: float = 0.0
    """Training images become clips of a moving camera: the crop pans and zooms by up to this
    share of its range; 0 keeps it static."""
    builtin: Literal["scenes", "figures", "figure"] = "scenes"
    """Built-in clips: scenes of many moving shapes; or one plain figure, of fixed size or a
    large one that crosses the picture, fully described by its caption (never flipped)."""
    valid_limit: int = 128
    """Maximum number of validation clips per evaluation."""
    max_pixels: int = 36_000_000
    """Files with more pixels per frame are skipped before they are decoded."""
    max_bytes: int = 4_000_000_000
    """Larger files are skipped before they are opened."""
    max_seconds: float = 14_400.0
    """Longer videos are skipped before they are decoded."""
    max_frames: int = 1_000_000
    """Videos with more frames are skipped before they are decoded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self)
        require_at_least(1, self, "frames")
        require(self.fps is None or self.fps > 0, "fps", self.fps, "above 0, or None")
        factor = self.min_rate_factor
        require(0 < factor <= 1, "min_rate_factor", factor, "above 0 and at most 1")
        require(0 <= self.pan <= 1, "pan", self.pan, "0 to 1")

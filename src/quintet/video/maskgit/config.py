"""Settings of video/maskgit. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from quintet.engine.config import require
from quintet.shared.maskgit.config import MaskedConfig, MaskedRecipe
from quintet.video.config import VideoDataConfig


@dataclass(frozen=True, kw_only=True)
class VideoMaskGitConfig(MaskedConfig):
    """Generator of clips: a masked transformer over the ids of a video tokenizer."""

    grid: tuple[int, ...] = (5, 16, 16)
    """Ids along each axis: latent frames, height and width; set by the size of the clips."""


@dataclass(frozen=True, kw_only=True)
class VideoMaskGitRecipe(MaskedRecipe):
    """All settings of a video generator run."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"tokenizer": "video/tokenizer"})
    """The tokenizer is frozen and copied into the run folder."""
    model: VideoMaskGitConfig = field(default_factory=VideoMaskGitConfig)
    """The transformer; grid and digits are those of the tokenizer."""
    videos: VideoDataConfig = field(default_factory=lambda: VideoDataConfig(builtin="figures"))
    """The data."""
    prefix_share: float = 0.3
    """Fraction of training clips whose first latent frames are given, for continuations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.prefix_share <= 1, "prefix_share", self.prefix_share, "between 0 and 1")

"""Settings of video/flow. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from quintet.shared.flow.config import FewStepsRecipe, FlowConfig, FlowRecipe
from quintet.video.config import VideoDataConfig


@dataclass(frozen=True, kw_only=True)
class VideoFlowConfig(FlowConfig):
    """Generator of clips: a flow over the latents of a video tokenizer."""

    grid: tuple[int, ...] = (5, 16, 16)
    """Latents along each axis in training: latent frames, height and width; set by the size."""
    changes: bool = False
    """Generate frames after given ones as changes from the last given one, in units of the changes
    of the training data: for models that continue clips."""

    @property
    def has_beside(self) -> bool:
        return self.changes


@dataclass(frozen=True, kw_only=True)
class VideoFlowRecipe(FlowRecipe):
    """All settings of a run of a flow generator of clips."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"tokenizer": "video/autoencoder"})
    """The tokenizer is frozen and copied into the run folder."""
    stage_families: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {"tokenizer": ("video/tokenizer", "shared/adopt")}
    )
    """An autoencoder of our own, or one that is adopted."""
    model: VideoFlowConfig = field(default_factory=VideoFlowConfig)
    """The transformer; grid and channels are those of the tokenizer."""
    videos: VideoDataConfig = field(default_factory=lambda: VideoDataConfig(builtin="figures"))
    """The data."""


@dataclass(frozen=True, kw_only=True)
class VideoFlowFewRecipe(FewStepsRecipe):
    """All settings of a run that distils a flow generator of clips to few steps."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"teacher": "video/flow"})
    """The teacher is frozen and copied into the run folder, its tokenizer with it."""
    videos: VideoDataConfig = field(default_factory=lambda: VideoDataConfig(builtin="figures"))
    """The data."""

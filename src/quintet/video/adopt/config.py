"""Settings of video/adopt. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field

from quintet.shared.adopt.config import AdoptRecipe
from quintet.shared.tokenizer.config import DiscriminatorConfig
from quintet.video.config import VideoDataConfig
from quintet.video.tokenizer.config import MotionDiscriminatorConfig, VideoLossConfig

ADOPTS = (
    "AutoencoderKLCogVideoX",
    "AutoencoderKLCosmos",
    "AutoencoderKLHunyuanVideo",
    "AutoencoderKLLTXVideo",
    "AutoencoderKLMagvit",
    "AutoencoderKLMochi",
    "AutoencoderKLTemporalDecoder",
    "AutoencoderKLWan",
)
"""Classes whose folders are loaded as models of clips."""


@dataclass(frozen=True, kw_only=True)
class VideoAdoptRecipe(AdoptRecipe):
    """All settings of a run that adopts an autoencoder of clips."""

    frame_discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """The frame discriminator."""
    motion_discriminator: MotionDiscriminatorConfig = field(
        default_factory=MotionDiscriminatorConfig
    )
    """The motion discriminator."""
    videos: VideoDataConfig = field(default_factory=VideoDataConfig)
    """The data."""
    losses: VideoLossConfig = field(default_factory=VideoLossConfig)
    """The losses."""

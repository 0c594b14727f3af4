"""Settings of music/adopt. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import OptimizerConfig, require, require_choices, require_finite
from quintet.shared.adopt.config import CODECS, AdoptSettings
from quintet.shared.config import SegmentDataConfig, SoundDiscriminatorConfig, require_at_least

ADOPTS = CODECS
"""Classes whose folders are loaded as codecs of sounds."""


@dataclass(frozen=True, kw_only=True)
class CodecDataConfig(SegmentDataConfig):
    """Audio files; their rate and channels become those of the codec."""

    seconds: float = 1.0
    """Length of the random segments of training; shorter recordings are padded with silence."""


@dataclass(frozen=True, kw_only=True)
class CodecLossConfig:
    """Losses of a codec."""

    adversarial: Literal["none", "hinge"] = "hinge"
    """Adversarial loss; none trains without discriminators."""
    adversarial_from: float = 0.1
    """Discriminators start after this fraction of the run."""
    adversarial_share: float = 0.3
    """Gradient norm of the discriminator losses at the output, relative to that of the other
    losses; the balancer adapts their weight."""
    adversarial_cap: float = 0.1
    """Upper bound of that weight, reached when the discriminators are at chance and their
    gradient is small."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        start = self.adversarial_from
        require(0 <= start <= 1, "adversarial_from", start, "a fraction between 0 and 1")
        require(self.adversarial_share > 0, "adversarial_share", self.adversarial_share, "above 0")
        cap = self.adversarial_cap
        require(cap >= 1e-4, "adversarial_cap", cap, "1e-4 or more; or set adversarial none")


@dataclass(frozen=True, kw_only=True)
class CodecAdoptRecipe(AdoptSettings):
    """All settings of a run that adopts an audio codec."""

    codebooks: int = 0
    """Number of residual codebooks used, from the first; 0: all."""
    sounds: CodecDataConfig = field(default_factory=CodecDataConfig)
    """The data."""
    losses: CodecLossConfig = field(default_factory=CodecLossConfig)
    """The losses."""
    discriminators: SoundDiscriminatorConfig = field(default_factory=SoundDiscriminatorConfig)
    """The discriminators."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer of the codec."""
    discriminator_optim: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(ema_decay=0.0)
    )
    """Optimizer of the discriminators."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "codebooks")

    @property
    def codec_start(self) -> int:
        return 0 if self.losses.adversarial == "none" else self.warm_steps

    @property
    def adversarial_start(self) -> int:
        if self.warm_steps:
            return 0
        return round(self.losses.adversarial_from * (self.planned_steps or self.steps))

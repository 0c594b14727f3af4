"""Settings that the families of music share. Imports no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import (
    OptimizerConfig,
    Recipe,
    require,
    require_at_least,
    require_choices,
    require_finite,
)
from quintet.shared.config import AudioDataConfig, SegmentDataConfig, SoundDiscriminatorConfig


@dataclass(frozen=True, kw_only=True)
class MusicDataConfig(AudioDataConfig):
    """Audio clips and their preprocessing."""

    seconds: float = 10.0
    """Maximum clip length; longer files are cropped, at random in training."""
    min_seconds: float = 4.0
    """Built-in training clips last min_seconds to seconds; validation clips last seconds."""
    valid_limit: int = 1000
    """Maximum number of validation clips per evaluation."""
    partial_captions: float = 0.2
    """Share of built-in training captions that omit some attributes."""
    buckets: int = 8
    """Batches are padded to one of this many lengths, evenly spaced up to seconds."""
    text_length: int = 1000
    """Captions are truncated to this many characters; a warning names the first."""
    max_seconds: float = 7200.0
    """Longer files are skipped before they are decoded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least, share = self.min_seconds, self.partial_captions
        require(self.seconds > 0, "seconds", self.seconds, "above 0")
        require(0 < least <= self.seconds, "min_seconds", least, "above 0 and at most seconds")
        require(0 <= share <= 1, "partial_captions", share, "a share between 0 and 1")
        require(self.max_seconds > 0, "max_seconds", self.max_seconds, "above 0")
        require_at_least(1, self, "buckets", "text_length")


@dataclass(frozen=True, kw_only=True)
class MusicLossConfig:
    """SpecAugment masks in training; the loss itself is a setting of the model."""

    time_masks: int = 2
    """Number of time masks, each at most a tenth of the clip wide."""
    freq_masks: int = 2
    """Number of frequency masks, each at most a tenth of the mel bins wide."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "time_masks", "freq_masks")


@dataclass(frozen=True, kw_only=True)
class CodecDataConfig(SegmentDataConfig):
    """Audio files; their rate and channels become those of the codec."""

    seconds: float = 1.0
    """Length of the random segments of training; shorter recordings are padded with silence."""


@dataclass(frozen=True, kw_only=True)
class CodecLossConfig:
    """Losses of a codec."""

    waveform: float = 0.1
    """Weight of the mean absolute error of samples, relative to that of log-mels."""
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
        require(self.waveform >= 0, "waveform", self.waveform, "0 or more")
        start = self.adversarial_from
        require(0 <= start <= 1, "adversarial_from", start, "a fraction between 0 and 1")
        require(self.adversarial_share > 0, "adversarial_share", self.adversarial_share, "above 0")
        cap = self.adversarial_cap
        require(cap >= 1e-4, "adversarial_cap", cap, "1e-4 or more; or set adversarial none")


@dataclass(frozen=True, kw_only=True)
class CodingRecipe(Recipe):
    """A training run of a codec and its discriminators."""

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

    @property
    def codec_start(self) -> int:
        """The codec's first step; discriminators that start earlier see it as it was."""
        return 0

    @property
    def adversarial_start(self) -> int:
        """The discriminators' first step."""
        return round(self.losses.adversarial_from * (self.planned_steps or self.steps))

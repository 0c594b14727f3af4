"""Configuration of the vocoder. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import (
    OptimiserConfig,
    Recipe,
    require,
    require_choices,
    require_finite,
)
from quintet.shared.config import (
    SegmentDataConfig,
    SoundDataConfig,
    SoundDiscriminatorConfig,
    require_at_least,
)


@dataclass(frozen=True, kw_only=True)
class VocoderConfig:
    """The model; the frames are those of `VoiceBoxConfig`."""

    sample_rate: int = 24_000
    """Sample rate in Hz."""
    n_fft: int = 1024
    """Samples of the FFT window."""
    hop_length: int = 256
    """Samples between frames."""
    n_mels: int = 100
    """Mel bins of a frame."""
    dim: int = 512
    """Width of the network."""
    depth: int = 8
    """Number of ConvNeXt blocks."""
    expansion: int = 3
    """Width inside a block, relative to dim."""
    corrections: int = 8
    """Corrections of the magnitudes of the output towards the given log-mels."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "sample_rate", "n_fft", "hop_length", "n_mels")
        require_at_least(1, self, "dim", "depth", "expansion")
        require_at_least(0, self, "corrections")
        fits = self.hop_length <= self.n_fft // 2
        require(fits, "hop_length", self.hop_length, "at most half of n_fft (overlapping frames)")
        even = self.n_fft // 2 * 2 == self.n_fft
        require(even, "n_fft", self.n_fft, "even")


@dataclass(frozen=True, kw_only=True)
class VocoderDataConfig(SegmentDataConfig, SoundDataConfig):
    """Recordings; transcripts are not needed."""

    sample_rate: int = 24_000
    """Sample rate in Hz; other files are resampled."""


@dataclass(frozen=True, kw_only=True)
class VocoderLossConfig:
    """Losses of the vocoder."""

    mel: float = 1.0
    """Weight of the error of the log-mels that the vocoder is given."""
    resolutions: float = 0.5
    """Weight of the mean error of log-mels with shorter and longer windows."""
    adversarial: Literal["none", "hinge"] = "hinge"
    """Adversarial loss; none trains without discriminators."""
    adversarial_from: float = 0.1
    """Discriminators start after this fraction of the run."""
    adversarial_weight: float = 0.02
    """Weight of the adversarial loss."""
    matching_weight: float = 0.02
    """Weight of the distance of the discriminators' features (feature matching)."""
    resolution_share: float = 0.1
    """Both weights for the resolution discriminator, relative to the period discriminator."""
    gain: float = 6.0
    """Training segments are made louder or softer by up to so many dB."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        start = self.adversarial_from
        require(0 <= start <= 1, "adversarial_from", start, "a fraction between 0 and 1")
        require_at_least(0, self, "resolutions", "adversarial_weight", "matching_weight", "gain")
        require_at_least(0, self, "resolution_share")
        require(self.mel > 0, "mel", self.mel, "above 0")


@dataclass(frozen=True, kw_only=True)
class VocoderRecipe(Recipe):
    """A training run of a vocoder and its discriminators."""

    model: VocoderConfig = field(default_factory=VocoderConfig)
    """The vocoder."""
    recordings: VocoderDataConfig = field(default_factory=VocoderDataConfig)
    """Recordings."""
    losses: VocoderLossConfig = field(default_factory=VocoderLossConfig)
    """The losses."""
    discriminators: SoundDiscriminatorConfig = field(default_factory=SoundDiscriminatorConfig)
    """The discriminators."""
    optim: OptimiserConfig = field(default_factory=OptimiserConfig)
    """Optimiser of the vocoder."""
    discriminator_optim: OptimiserConfig = field(
        default_factory=lambda: OptimiserConfig(ema_decay=0.0)
    )
    """Optimiser of the discriminators."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model, rate = self.model, self.recordings.sample_rate
        matched = rate == model.sample_rate
        require(matched, "recordings.sample_rate", rate, f"model.sample_rate, {model.sample_rate}")
        least = max(model.n_fft, *self.discriminators.windows)
        long_enough = self.segment >= least
        seconds = self.recordings.seconds
        require(
            long_enough, "recordings.seconds", seconds, f"{least / rate:.3f} or more (one window)"
        )

    @property
    def adversarial_start(self) -> int:
        """The discriminators' first step."""
        return round(self.losses.adversarial_from * (self.planned_steps or self.steps))

    @property
    def segment(self) -> int:
        """Samples of a training segment: whole hops."""
        return self._whole_hops(self.recordings.seconds)

    @property
    def valid_segment(self) -> int:
        """The most samples of a validation recording."""
        return max(self.segment, self._whole_hops(self.recordings.valid_seconds))

    def _whole_hops(self, seconds: float) -> int:
        hop = self.model.hop_length
        return round(seconds * self.model.sample_rate / hop) * hop

"""Configuration of the vocoder. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field

from quintet.engine.config import OptimizerConfig, Recipe, require, require_at_least
from quintet.shared.config import SegmentDataConfig, SoundDataConfig


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
    retrievals: int = 32
    """Iterations of Griffin-Lim that find the phases of the predicted magnitudes."""
    corrections: int = 60
    """Corrections of the magnitudes of the output towards the given log-mels, after these."""

    def __post_init__(self) -> None:
        sizes = ("sample_rate", "n_fft", "hop_length", "n_mels", "dim", "depth")
        require_at_least(1, self, *sizes)
        require_at_least(0, self, "retrievals", "corrections")
        fits = self.hop_length <= self.n_fft // 2
        require(fits, "hop_length", self.hop_length, "at most half of n_fft (overlapping frames)")
        require(self.n_fft % 2 == 0, "n_fft", self.n_fft, "even")


@dataclass(frozen=True, kw_only=True)
class VocoderDataConfig(SegmentDataConfig, SoundDataConfig):
    """Recordings; transcripts are not needed."""

    sample_rate: int = 24_000
    """Sample rate in Hz; other files are resampled."""
    gain: float = 6.0
    """Training segments are made louder or softer by up to this many dB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "gain")


@dataclass(frozen=True, kw_only=True)
class VocoderRecipe(Recipe):
    """A training run of a vocoder."""

    model: VocoderConfig = field(default_factory=VocoderConfig)
    """The vocoder."""
    recordings: VocoderDataConfig = field(default_factory=VocoderDataConfig)
    """Recordings."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer of the vocoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model, rate = self.model, self.recordings.sample_rate
        matched = rate == model.sample_rate
        require(matched, "recordings.sample_rate", rate, f"model.sample_rate, {model.sample_rate}")
        seconds, least = self.recordings.seconds, f"{model.n_fft / rate:.3f} or more (one window)"
        require(self.segment >= model.n_fft, "recordings.seconds", seconds, least)

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

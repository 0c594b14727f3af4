"""Settings that the families of music share. Imports no torch: help must be instant."""

from dataclasses import dataclass

from quintet.engine.config import require, require_at_least
from quintet.shared.config import AudioDataConfig


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

"""Settings that the families of speech share. Imports no torch: help must be instant."""

from dataclasses import dataclass

from quintet.engine.config import require, require_at_least
from quintet.shared.config import AudioDataConfig


@dataclass(frozen=True, kw_only=True)
class SpeechDataConfig(AudioDataConfig):
    """Recordings and batching."""

    sample_rate: int = 24_000
    """Sample rate in Hz; other files are resampled."""
    max_seconds: float = 16.0
    """Longer recordings are skipped: a crop would not match its transcript."""
    min_seconds: float = 0.1
    """Shorter recordings are skipped."""
    text_length: int = 512
    """Recordings with longer texts, in bytes or phonemes, are skipped."""
    trim: float = 40.0
    """Silence at both ends (this many dB below the loudest moment) is cut to 0.1 s; 0: kept."""
    buckets: int = 6
    """Number of padded lengths of batches, evenly spaced up to max_seconds."""
    valid_limit: int = 500
    """Maximum number of validation recordings per evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, least, most = self.sample_rate, self.min_seconds, self.max_seconds
        require(rate >= 8000, "sample_rate", rate, "8,000 or more")
        require(0 < least <= most, "min_seconds", least, "above 0 and at most max_seconds")
        require_at_least(1, self, "buckets", "text_length")
        require_at_least(0, self, "trim")

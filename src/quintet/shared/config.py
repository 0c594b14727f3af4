"""Settings that several rooms share. Imports no torch: help must be instant."""

from dataclasses import dataclass
from typing import Literal

from quintet.engine.config import (
    require,
    require_at_least,
    require_finite,
    require_fraction,
    require_held_out,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class CaptionConfig:
    """A generator that attends to captions (shared/conditioning.py)."""

    text: Literal["bytes", "words", "frozen", "none"] = "bytes"
    """Caption encoder: bytes or hashed words (trained jointly), frozen (pretrained), or none."""
    text_length: int = 128
    """Maximum caption length in bytes (words; frozen: tokens); longer captions are truncated."""
    text_words: int = 8192
    """words: rows of the table of hashed words; in a smaller one more words share a row."""
    text_layers: int = 2
    """bytes, words: encoder layers."""
    text_dim: int = 512
    """frozen: width of the embeddings."""
    text_path: str | None = setting(path=True, free=True)
    """frozen: local folder of the encoder, needed to generate from captions."""
    dropout: float = 0.0
    """Dropout probability of the residual branches."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "text_length", "text_words", "text_dim")
        require_at_least(0, self, "text_layers")
        require_fraction(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A folder of files, or built-in data."""

    valid_fraction: float = 0.05
    """Fraction of a folder held out for validation, chosen by the seed."""
    valid_folder: str | None = setting(None, path=True)
    """Folder of validation data; by default the folder's own `validation`, or valid_fraction."""
    split_file: str | None = setting(None, path=True, split=True)
    """JSON file with lists `train` and `valid` of the files; a run keeps its own in data.json."""
    exclude_held_out: bool = True
    """Exclude files from training that are also in validation, by path or by content."""
    valid_limit: int = 512
    """Maximum number of validation samples per evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training samples without a folder."""
    max_bytes: int = 256_000_000
    """Larger files are skipped before they are opened."""

    def __post_init__(self) -> None:
        require_finite(self)
        require_held_out(self)
        require_at_least(1, self, "max_bytes")


@dataclass(frozen=True, kw_only=True)
class SoundFileConfig(DataConfig):
    """Audio files."""

    max_bytes: int = 1_000_000_000
    """Larger files are skipped before they are opened."""
    max_channels: int = 8
    """Files with more channels are skipped; others are mixed to mono."""
    max_rate: int = 192_000
    """Files of a higher sample rate are skipped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "max_channels", "max_rate")


@dataclass(frozen=True, kw_only=True)
class SoundDataConfig(SoundFileConfig):
    """Audio files at one sample rate."""

    sample_rate: int = 16_000
    """Sample rate in Hz; other files are resampled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.sample_rate
        require(1000 <= rate <= 192_000, "sample_rate", rate, "between 1,000 and 192,000")


@dataclass(frozen=True, kw_only=True)
class AudioDataConfig(SoundDataConfig):
    """Audio files with texts."""

    max_missing: float = 0.5
    """Files without a text are skipped; above this fraction the folder is rejected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.max_missing <= 1, "max_missing", self.max_missing, "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SegmentDataConfig(SoundFileConfig):
    """Segments of audio files, without texts."""

    seconds: float = 0.68
    """Length of the random segments of training; shorter recordings are padded with silence."""
    valid_seconds: float = 4.0
    """Validation uses the middle of a recording, up to this many seconds."""
    speed: float = 0.0
    """Recordings of a folder are played faster or slower in training, by a factor of up to 1
    plus this; the pitch changes with it."""
    max_seconds: float = 7200.0
    """Longer files are skipped before they are decoded."""
    valid_limit: int = 128
    """Maximum number of validation recordings per evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("seconds", "valid_seconds", "max_seconds"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        require(0 <= self.speed <= 1, "speed", self.speed, "between 0 (off) and 1 (twice as fast)")


@dataclass(frozen=True, kw_only=True)
class SoundDiscriminatorConfig:
    """The two discriminators of sounds."""

    periods: tuple[int, ...] = (2, 3, 5, 7, 11)
    """Periods in samples, one network each."""
    period_dim: int = 32
    """Width of their first layer."""
    windows: tuple[int, ...] = (512, 1024, 2048)
    """Window lengths in samples, one network each."""
    window_dim: int = 32
    """Width of their layers."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "period_dim", "window_dim")
        require(bool(self.periods) and min(self.periods) >= 1, "periods", self.periods, "1 or more")
        require(bool(self.windows) and min(self.windows) >= 16, "windows", self.windows, "from 16")

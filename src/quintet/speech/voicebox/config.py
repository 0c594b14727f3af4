"""Settings of speech/voicebox. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import (
    OptimizerConfig,
    Recipe,
    require,
    require_at_least,
    require_choices,
    require_finite,
    require_fraction,
    setting,
)
from quintet.speech.config import SpeechDataConfig


@dataclass(frozen=True, kw_only=True)
class VoiceBoxConfig:
    """The model: flow over frames, aligner and duration model."""

    features: Literal["mel", "latents"] = "mel"
    """Frames are log-mels of the sound, or custom latents."""
    sample_rate: int = 24_000
    """mel: sample rate in Hz."""
    n_fft: int = 1024
    """mel: samples of the FFT window."""
    hop_length: int = 256
    """mel: samples between frames."""
    n_mels: int = 100
    """Features of a frame: mel bins, or channels of the latents."""
    mean: float = -2.0
    """Mean of the features, for normalisation; the default is about that of speech."""
    std: float = 2.2
    """Standard deviation of the features, for normalisation."""
    dim: int = 512
    """Width of the transformer."""
    depth: int = 12
    """Layers of the transformer."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 64
    """Channels per head."""
    registers: int = 16
    """Register tokens before the first frame."""
    kernel: int = 31
    """Kernel size of the convolutional position embedding."""
    dropout: float = 0.0
    """Dropout of the residual branches."""
    text: Literal["learned", "given", "none"] = "learned"
    """Characters with a learned alignment, given ids (one per frame), or none (sound alone)."""
    vocabulary: int = 258
    """Vocabulary size: 256 bytes and 2 special ids, or that of custom ids."""
    phonemes: str | None = None
    """learned: texts are phonemes of espeak-ng (quintet[phonemes]) in this language, such as en-us,
    or in that of the metadata; unset: bytes."""
    spell_out: bool = False
    """learned: write numbers and abbreviations of English texts as words."""
    edges: bool = True
    """learned: add a space before and after each text, for silence."""
    text_dim: int = 256
    """Width of the character embedding."""
    align_dim: int = 80
    """learned: width of the aligner."""
    duration_dim: int = 256
    """learned: width of the duration model."""
    duration_depth: int = 3
    """learned: layers of the duration model."""
    duration_dropout: float = 0.0
    """learned: dropout of the duration model, for few recordings."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        require_at_least(1, self, "sample_rate", "n_fft", "hop_length", "n_mels", "kernel")
        require_at_least(1, self, "dim", "depth", "heads", "head_dim", "text_dim", "align_dim")
        require_at_least(1, self, "duration_dim", "duration_depth")
        require_at_least(0, self, "registers")
        require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "even (rotary embedding)")
        wide = self.duration_dim % 64 == 0
        require(wide, "duration_dim", self.duration_dim, "a multiple of 64 (head width)")
        require(self.kernel % 2 == 1, "kernel", self.kernel, "odd")
        require(self.std > 0, "std", self.std, "above 0")
        require_fraction(self, "dropout", "duration_dropout")
        least = 258 if self.text == "learned" else 3
        require(self.vocabulary >= least, "vocabulary", self.vocabulary, f"{least} or more")
        fits = self.hop_length <= self.n_fft // 2
        require(fits, "hop_length", self.hop_length, "at most half of n_fft (overlapping frames)")


@dataclass(frozen=True, kw_only=True)
class VoiceBoxLossConfig:
    """Masking and condition dropout in training."""

    mask_fraction: tuple[float, float] = (0.5, 1.0)
    """Range of the fraction of a recording to mask, in one span."""
    drop_context: float = 0.2
    """Fraction of samples without audio context, for speech from text alone."""
    drop_text: float = 0.1
    """Fraction of samples without text, for classifier-free guidance."""

    def __post_init__(self) -> None:
        low, high = self.mask_fraction
        require(0 < low <= high <= 1, "mask_fraction", (low, high), "0 < low <= high <= 1")
        for name in ("drop_context", "drop_text"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Infilling and synthesis of validation recordings at evaluations."""

    steps: int = 16
    """Steps of the ODE solver."""
    method: Literal["euler", "midpoint", "adaptive"] = "midpoint"
    """euler: one network evaluation per step; midpoint: two; adaptive: Dormand-Prince."""
    sway: float = -1.0
    """Sway sampling coefficient: below 0, down to -1, steps are denser near the noise."""
    cond_scale: float = 1.3
    """Scale of classifier-free guidance; 1: none."""
    count: int = 32
    """Number of validation texts to synthesise from text alone."""
    vocoder: str | None = setting(path=True, free=True)
    """Run or export of a vocoder, or folder with Vocos weights; unset: Griffin-Lim."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        require_at_least(1, self, "steps")
        require_at_least(0, self, "count")
        require(-1 <= self.sway <= 1, "sway", self.sway, "between -1 and 1")


@dataclass(frozen=True, kw_only=True)
class VoiceBoxRecipe(Recipe):
    """A VoiceBox run. `batch_size` counts recordings of the longest bucket; batches of shorter
    recordings have more of them."""

    model: VoiceBoxConfig = field(default_factory=VoiceBoxConfig)
    """Flow, aligner and duration model."""
    recordings: SpeechDataConfig = field(default_factory=SpeechDataConfig)
    """Recordings and texts."""
    losses: VoiceBoxLossConfig = field(default_factory=VoiceBoxLossConfig)
    """Masking and condition dropout."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling at evaluations."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model, rate = self.model, self.recordings.sample_rate
        matched = model.features == "latents" or rate == model.sample_rate
        require(matched, "recordings.sample_rate", rate, f"model.sample_rate, {model.sample_rate}")

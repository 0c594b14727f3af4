"""Settings of music/mulan. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import OptimizerConfig, Recipe, require, setting
from quintet.music.config import MusicDataConfig, MusicLossConfig
from quintet.shared.config import require_at_least, require_fraction


@dataclass(frozen=True, kw_only=True)
class MuLaNConfig:
    """The model: an audio tower and a text tower with a joint embedding space."""

    sample_rate: int = 16_000
    """Samples per second of the input."""
    n_fft: int = 2048
    """FFT size; a shorter window cannot resolve neighbouring low notes."""
    hop_length: int = 160
    """Samples between frames."""
    n_mels: int = 128
    """Mel bins of the spectrogram."""
    f_min: float = 0.0
    """Lower edge of the mel filterbank in Hz; the upper one is half the sample rate."""
    patch_size: tuple[int, int] = (16, 16)
    """Mel bins and frames of a patch."""
    patch_dropout: float = 0.25
    """Share of the patches dropped in training."""
    dim: int = 512
    """Width of the audio tower."""
    layers: int = 6
    """Layers of the audio tower."""
    heads: int = 8
    """Attention heads of the audio tower."""
    head_dim: int = 64
    """Channels per attention head of the audio tower."""
    text: Literal["bytes", "frozen"] = "bytes"
    """Text tower: a trained byte-level encoder, or a frozen encoder from text_path."""
    text_length: int = 256
    """Maximum text length in bytes (frozen: in tokens); longer texts are truncated."""
    text_dim: int = 512
    """Width of the text tower, or of the frozen encoder's embeddings."""
    text_layers: int = 6
    """bytes: layers of the text tower."""
    text_heads: int = 8
    """bytes: attention heads of the text tower."""
    text_head_dim: int = 64
    """bytes: channels per attention head of the text tower."""
    vocab_size: int = 258
    """bytes: vocabulary size of the text tower; raise it for custom token ids."""
    text_path: str | None = setting(path=True, free=True)
    """frozen: folder of the encoder on disk."""
    dim_latent: int = 128
    """Dimension of the joint embedding space; embeddings have unit length."""
    loss: Literal["softmax", "decoupled", "sigmoid"] = "softmax"
    """Contrastive loss: InfoNCE as in CLIP, decoupled (DCL), or sigmoid (SigLIP)."""
    temperature: float = 0.07
    """Initial temperature of the logits; it is learned within 0.01 and 10."""
    quantiser_depth: int = 8
    """Codebooks of the residual quantiser of embeddings; 0: no quantiser."""
    quantiser_bits: int = 10
    """Each codebook has 2 ** quantiser_bits codes."""

    def __post_init__(self) -> None:
        sizes = ("sample_rate", "n_fft", "hop_length", "n_mels", "dim", "layers", "heads")
        texts = ("text_length", "text_dim", "text_layers", "text_heads", "text_head_dim")
        require_at_least(1, self, *sizes, "head_dim", *texts, "dim_latent")
        vocab = self.vocab_size
        require(vocab >= 258, "vocab_size", vocab, "258 or more: 256 bytes, padding and start")
        patch = self.patch_size
        divides = min(patch) >= 1 and self.n_mels % patch[0] == 0
        expected = f"1 or more, the first a divisor of n_mels {self.n_mels}"
        require(divides, "patch_size", patch, expected)
        require_fraction(self, "patch_dropout")
        divisible = self.head_dim % 4 == 0
        require(divisible, "head_dim", self.head_dim, "divisible by 4 (2D rotary embedding)")
        even = self.text_head_dim % 2 == 0
        require(even, "text_head_dim", self.text_head_dim, "even (rotary embedding)")
        temperature = self.temperature
        require(0.01 <= temperature <= 10, "temperature", temperature, "between 0.01 and 10")
        nyquist = self.sample_rate / 2
        in_band = 0 <= self.f_min < nyquist
        require(in_band, "f_min", self.f_min, f"0 or more, below half the rate, {nyquist:g}")
        require_at_least(0, self, "quantiser_depth")
        bits = self.quantiser_bits
        require(1 <= bits <= 20, "quantiser_bits", bits, "between 1 and 20")

    @property
    def patch_rows(self) -> int:
        """Patches along the frequency axis."""
        return self.n_mels // self.patch_size[0]


@dataclass(frozen=True, kw_only=True)
class MuLaNRecipe(Recipe):
    """Configuration of a MuLaN run."""

    model: MuLaNConfig = field(default_factory=MuLaNConfig)
    """Audio and text tower."""
    sounds: MusicDataConfig = field(default_factory=MusicDataConfig)
    """Audio clips and captions."""
    losses: MusicLossConfig = field(default_factory=MusicLossConfig)
    """SpecAugment masks."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer and learning rate schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, expected = self.sounds.sample_rate, self.model.sample_rate
        require(rate == expected, "sounds.sample_rate", rate, f"model.sample_rate, {expected}")

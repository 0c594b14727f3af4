"""Settings of masked generators over the ids of a tokenizer. Imports no torch."""

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from quintet.engine.config import require, require_at_least, require_choices, setting
from quintet.shared.config import CaptionConfig
from quintet.shared.generation.config import GenerationConfig, GeneratorRecipe


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(CaptionConfig):
    """A bidirectional transformer over the ids of a picture or a clip, some of them masked."""

    grid: tuple[int, ...] = (16, 16)
    """Ids along each axis: height and width, of clips latent frames first; set by the size."""
    digits: tuple[int, ...] = (512, 125)
    """Bases of the digits of a code, least significant first; set by the tokenizer. Each digit has
    a softmax of its own, given the digits before it."""
    dim: int = 768
    """Model width."""
    layers: int = 8
    """Transformer blocks."""
    heads: int = 12
    """Attention heads."""
    head_dim: int = 64
    """Channels per head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self)
        grid, digits = self.grid, self.digits
        require(min(grid, default=0) >= 1, "grid", grid, "1 or more ids along each axis")
        require(min(digits, default=0) >= 2, "digits", digits, "2 or more each")
        limit = "at most 2 ** 62 codes (fewer levels of the tokenizer)"
        require(self.codebook_size <= 2**62, "digits", digits, limit)
        require_at_least(1, self, "dim", "layers", "heads")
        divisible = self.head_dim >= 4 and self.head_dim % 4 == 0
        require(divisible, "head_dim", self.head_dim, "a multiple of 4 (rotary embedding)")

    @property
    def codebook_size(self) -> int:
        return prod(self.digits)

    @property
    def tokens(self) -> int:
        return prod(self.grid)


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(GenerationConfig):
    """Generation during evaluation."""

    sampling_steps: int = 12
    """Generation steps, 8 to 64; each fixes more of the ids."""
    order: Literal["confidence", "halton"] = "confidence"
    """Which ids are fixed first: the most likely ones, or those of a Halton sequence."""
    temperature: float = 0.7
    """Sampling temperature; 0 is greedy."""
    choice_temperature: float = 4.5
    """confidence: noise in the choice of ids, which falls to 0 in the last step."""
    cond_scale: float = 3.0
    """Classifier-free guidance scale of the last step, which rises from 1; 1 disables guidance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "temperature", "choice_temperature")


@dataclass(frozen=True, kw_only=True)
class MaskedRecipe(GeneratorRecipe):
    """A training run of a masked generator."""

    tokenizer: str | None = setting(path=True)
    """Run or exported folder of the trained tokenizer."""
    generation: DecodingConfig = field(default_factory=DecodingConfig)
    """Generation during evaluation."""

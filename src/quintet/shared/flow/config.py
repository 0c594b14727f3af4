"""Settings of flow generators over the latents of a tokenizer. Imports no torch."""

import math
from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import require, require_at_least, require_choices, setting
from quintet.shared.config import CaptionConfig
from quintet.shared.generation.config import GenerationConfig, GeneratorRecipe


@dataclass(frozen=True, kw_only=True)
class FlowConfig(CaptionConfig):
    """A transformer that predicts velocities of the latents of a picture or a clip."""

    grid: tuple[int, ...] = (16, 16)
    """Latents along each axis in training: height and width, of clips latent frames first; set by
    the size. Other grids can be generated."""
    latent_channels: int = 8
    """Channels of the latents; set by the tokenizer."""
    patch: int = 1
    """Side of the squares of latents that become one token; 2 makes a quarter of the tokens, and
    of music, where they stand in a row, half of them."""
    dim: int = 512
    """Model width."""
    layers: int = 12
    """Transformer blocks."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 64
    """Channels per head."""
    text: Literal["bytes", "words", "frozen", "none"] = "words"
    """Caption encoder: bytes or hashed words (trained jointly), frozen (pretrained), or none."""
    text_length: int = 32
    """Maximum caption length in words (bytes; frozen: tokens); longer captions are truncated."""
    shift: float = 0.0
    """How far times lie towards the noise, in training and generation (arXiv 2403.03206). 1: not at
    all; 0: by the number of values of a sample, the root of a 512th of it, at least 1."""
    jumps: bool = False
    """Takes the end of a step as a condition: generation in 1 to 8 steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self)
        grid, patch = self.grid, self.patch
        require(min(grid, default=0) >= 1, "grid", grid, "1 or more latents along each axis")
        require_at_least(1, self, "latent_channels", "patch", "dim", "layers", "heads")
        whole = not any(side % patch for side in grid[-2:])
        require(whole, "patch", patch, f"a divisor of the last two sides of the grid, {grid}")
        divisible = self.head_dim >= 4 and self.head_dim % 4 == 0
        require(divisible, "head_dim", self.head_dim, "a multiple of 4 (rotary embedding)")
        require(self.shift >= 0, "shift", self.shift, "0 or more")

    @property
    def tokens(self) -> int:
        """Latent positions of a sample."""
        return math.prod(self.grid)

    @property
    def cells(self) -> int:
        """Latents of a token."""
        return self.patch ** min(2, len(self.grid))

    @property
    def time_shift(self) -> float:
        """`shift`, or what it is by default: neighbouring values are alike, so that the more there
        are, the more noise it takes to hide a picture (RAE, arXiv 2510.11690)."""
        return self.shift or max(1.0, math.sqrt(self.latent_channels * self.tokens / 512))

    @property
    def has_beside(self) -> bool:
        """Whether latents of a condition stand beside those of a sample."""
        return self.takes_beside

    @property
    def takes_beside(self) -> bool:
        """Whether the caller gives them."""
        return False


@dataclass(frozen=True, kw_only=True)
class SolverConfig(GenerationConfig):
    """Generation during evaluation."""

    sampling_steps: int = 25
    """Steps of the ODE solver."""
    method: Literal["euler", "midpoint"] = "euler"
    """ODE solver; midpoint evaluates the network twice per step."""
    cond_scale: float = 2.5
    """Classifier-free guidance scale; 1 disables guidance."""


@dataclass(frozen=True, kw_only=True)
class SolvedRecipe(GeneratorRecipe):
    """A training run of a flow generator, of many steps or of few."""

    known_share: float = 0.3
    """Fraction of training samples of which a part is given, for in-painting and continuations."""
    generation: SolverConfig = field(default_factory=SolverConfig)
    """Generation during evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.known_share <= 1, "known_share", self.known_share, "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class FlowRecipe(SolvedRecipe):
    """A training run of a flow generator."""

    tokenizer: str | None = setting(path=True)
    """Run, export or diffusers folder of the trained autoencoder."""


@dataclass(frozen=True, kw_only=True)
class FewStepsRecipe(SolvedRecipe):
    """A training run that distils a flow generator to few steps."""

    teacher: str | None = setting(path=True)
    """Run or exported folder of the trained flow generator."""
    guidance: float = 2.0
    """Guidance scale of the teacher's velocities, which become the student's own."""
    jump_every: int = 2
    """Every so many training steps the student learns to jump; in the others it learns velocities
    from the teacher."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.text_drop == 0, "text_drop", self.text_drop, "0: guidance is the teacher's")
        require_at_least(1, self, "jump_every")

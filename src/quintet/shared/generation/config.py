"""Settings that all generators over the codes of a tokenizer share. Imports no torch."""

from dataclasses import dataclass, field

from quintet.engine.config import (
    OptimizerConfig,
    Recipe,
    require,
    require_at_least,
    require_choices,
)


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Generation during evaluation."""

    count: int = 64
    """Samples generated from validation captions per evaluation; 0 disables generation."""
    sampling_steps: int = 12
    """Generation steps."""
    cond_scale: float = 3.0
    """Classifier-free guidance scale; 1 disables guidance."""
    reference_count: int = 2048
    """Training samples searched for the nearest neighbour of a generated one."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_at_least(0, self, "count")
        require_at_least(1, self, "sampling_steps", "reference_count")


@dataclass(frozen=True, kw_only=True)
class GeneratorRecipe(Recipe):
    """A training run of a generator over the codes of a tokenizer."""

    variants: int = 1
    """Number of fixed augmentations per sample, including the original; their codes are cached."""
    text_drop: float = 0.1
    """Fraction of captions dropped in training, for classifier-free guidance."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.variants >= 1, "variants", self.variants, "1 or more")
        require(0 <= self.text_drop <= 1, "text_drop", self.text_drop, "between 0 and 1")

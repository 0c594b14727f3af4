"""What can be set about training a tokenizer with critics. No torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import Recipe, path, require


@dataclass(frozen=True, kw_only=True)
class TokenizerLossConfig:
    """What the tokenizer is trained for."""

    l1: float = 1.0
    """Weight of the mean absolute error."""
    l2: float = 2.0
    """Weight of the mean squared error."""
    perceptual: float = 0.5
    """Weight of the perceptual distance; 0 leaves it out."""
    vgg: str | None = path()
    """A local safetensors file of VGG16 or LPIPS weights; else the distance without weights."""
    adversarial: Literal["none", "hinge", "relativistic"] = "hinge"
    """How the judgement of critics counts; none trains without critics."""
    adversarial_from: float = 0.6
    """Critics start after this share of the run."""
    adversarial_share: float = 0.5
    """Size of the adversarial gradient at the picture, against the reconstruction's."""
    adversarial_cap: float = 1.0
    """The adversarial weight never exceeds this."""
    adversarial_ramp: int = 200
    """Steps over which the adversarial weight grows in."""
    penalty: Literal["none", "r1", "r1_difference", "lecam"] = "r1_difference"
    """What keeps critics smooth: R1 by double backward, by finite difference, or LeCam."""
    penalty_weight: float = 0.1
    """Weight of the penalty."""
    penalty_every: int = 4
    """Steps of a critic between penalties; their weight is scaled up to match."""

    def __post_init__(self) -> None:
        share = self.adversarial_from
        require(0 <= share <= 1, "adversarial_from", share, "a share of the run between 0 and 1")
        require(self.penalty_every >= 1, "penalty_every", self.penalty_every, "1 step or more")
        cap = self.adversarial_cap
        require(cap >= 1e-4, "adversarial_cap", cap, "1e-4 or more; adversarial none does without")


@dataclass(frozen=True, kw_only=True)
class TokenizerRecipe(Recipe):
    """A run of a tokenizer and its critics."""

    losses: TokenizerLossConfig = field(default_factory=TokenizerLossConfig)
    """The losses."""

    @property
    def adversarial_start(self) -> int:
        """The critics' first step."""
        return round(self.losses.adversarial_from * (self.schedule_steps or self.steps))


def require_divisible(size: tuple[int, int], factor: int, name: str) -> None:
    for side in size:
        divides = side // factor * factor == side
        require(divides, name, size, f"divisible by the tokenizer's factor {factor}")

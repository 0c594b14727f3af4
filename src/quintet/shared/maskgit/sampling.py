"""Flags of `quintet sample` for masked generators."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from quintet.shared.generation.sampling import GeneratorFlags


@dataclass(frozen=True, kw_only=True)
class MaskedFlags(GeneratorFlags):
    """Flags of a masked generator."""

    SETTINGS: ClassVar[tuple[str, ...]] = (
        *GeneratorFlags.SETTINGS,
        "order",
        "temperature",
        "choice_temperature",
    )
    steps: int | None = None
    """Generation steps, 8 to 64. The defaults of this and of other settings of generation are those
    of the run's evaluations."""
    order: Literal["confidence", "halton"] | None = None
    """Which ids are fixed first, the most likely or those of a Halton sequence."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy."""
    choice_temperature: float | None = None
    """Noise in the choice of the most likely ids, which falls to 0."""

"""Flags of `quintet sample` for flow generators."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from quintet.shared.generation.sampling import GeneratorFlags


@dataclass(frozen=True, kw_only=True)
class FlowFlags(GeneratorFlags):
    """Flags of a flow generator."""

    SETTINGS: ClassVar[tuple[str, ...]] = (*GeneratorFlags.SETTINGS, "method")
    steps: int | None = None
    """Steps of the ODE solver, 10 to 50 (of few steps 1 to 8); unset, as in the
    run's evaluations, like other settings."""
    method: Literal["euler", "midpoint"] | None = None
    """ODE solver; midpoint evaluates the network twice per step."""

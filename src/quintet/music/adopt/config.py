"""Settings of music/adopt. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass

from quintet.engine.config import require_at_least
from quintet.music.config import CodingRecipe
from quintet.shared.adopt.config import CODECS, AdoptSettings

ADOPTS = CODECS
"""Classes whose folders are loaded as codecs of sounds."""


@dataclass(frozen=True, kw_only=True)
class CodecAdoptRecipe(AdoptSettings, CodingRecipe):
    """All settings of a run that adopts an audio codec."""

    codebooks: int = 0
    """Number of residual codebooks used, from the first; 0: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "codebooks")

    @property
    def codec_start(self) -> int:
        return 0 if self.losses.adversarial == "none" else self.warm_steps

    @property
    def adversarial_start(self) -> int:
        return 0 if self.warm_steps else super().adversarial_start

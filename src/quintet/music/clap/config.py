"""Settings of music/clap. Plain values only, and no torch: help must be instant."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from quintet.engine.config import OptimizerConfig, Recipe, setting
from quintet.music.config import MusicDataConfig, MusicLossConfig
from quintet.shared.adopt.config import PairConfig

Trained = Literal["all", "projections", "audio", "text"]
FOLDER = "a folder of a transformers ClapModel: config.json, safetensors, and its processor's files"

ADOPTS = ("ClapModel",)
"""The class whose folders are loaded."""


@dataclass(frozen=True, kw_only=True)
class ClapConfig(PairConfig):
    """What rebuilds an adopted ClapModel, but for its tokenizer."""

    extractor: str = "{}"
    """Settings of its feature extractor, as JSON."""

    @property
    def front_end(self) -> dict[str, Any]:
        return json.loads(self.extractor)

    @property
    def sample_rate(self) -> int:
        return self.front_end["sampling_rate"]

    @property
    def seconds(self) -> float:
        """The longest sound that it takes at once."""
        return self.front_end["max_length_s"]

    @property
    def vocab_size(self) -> int:
        return self._of_text("vocab_size", 50_265)

    @property
    def text_length(self) -> int:
        """The most tokens that have positions, which begin after that of padding."""
        positions = self._of_text("max_position_embeddings", 514)
        return positions - self._of_text("pad_token_id", 1) - 1

    def _of_text(self, name: str, default: int) -> int:
        """config.json may leave out what is the default of the class."""
        return (self.values.get("text_config") or {}).get(name, default)


@dataclass(frozen=True, kw_only=True)
class ClapRecipe(Recipe):
    """All settings of a run that adopts a ClapModel."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"clap": FOLDER})
    """The original; the run keeps a copy."""
    clap: str | None = setting(path=True)
    """Folder of the ClapModel and its processor, or a run of this recipe; on the command line also
    --from."""
    train: Trained = "all"
    """What is trained, besides the temperature: everything, both projections, or one tower with its
    projection. The rest is unchanged, bit for bit."""
    sounds: MusicDataConfig = field(
        default_factory=lambda: MusicDataConfig(sample_rate=48_000, buckets=1)
    )
    """Audio clips and captions; clips have the rate of the model, and at most its length."""
    losses: MusicLossConfig = field(default_factory=MusicLossConfig)
    """SpecAugment masks."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer and learning rate schedule."""

"""Settings of music/flow. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal

from quintet.engine.config import require, require_choices
from quintet.shared.config import SoundFileConfig
from quintet.shared.flow.config import FlowConfig, FlowRecipe


@dataclass(frozen=True, kw_only=True)
class MusicFlowConfig(FlowConfig):
    """Generator of music: a flow over the latents of a codec."""

    grid: tuple[int, ...] = (200,)
    """Latents of a sound of training, one for each frame of the codec; set by sounds.seconds.
    Other lengths can be generated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.grid) == 1, "grid", self.grid, "one number of frames")


@dataclass(frozen=True, kw_only=True)
class SongDataConfig(SoundFileConfig):
    """Windows of songs with captions, at the rate and with the channels of the codec."""

    seconds: float = 4.0
    """Length of a window; shorter files are padded with silence. `variants` windows are taken of
    each file: the middle, and others at places that stay the same."""
    max_seconds: float = 7200.0
    """Longer files are skipped before they are decoded."""
    builtin: Literal["songs", "motifs"] = "songs"
    """Without a folder: songs of ten instruments in all keys, with rhythms and drums; or motifs of
    five instruments in C."""
    valid_limit: int = 256
    """Maximum number of validation songs per evaluation."""
    speed: ClassVar[float] = 0.0
    """Windows keep the tempo that captions state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self)
        for name in ("seconds", "max_seconds"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


@dataclass(frozen=True, kw_only=True)
class MusicFlowRecipe(FlowRecipe):
    """All settings of a run of a flow generator of music."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"tokenizer": "music/codec"})
    """The codec is frozen and copied into the run folder."""
    model: MusicFlowConfig = field(default_factory=MusicFlowConfig)
    """The transformer; grid and channels follow from the codec."""
    sounds: SongDataConfig = field(default_factory=SongDataConfig)
    """The data."""

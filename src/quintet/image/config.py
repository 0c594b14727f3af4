"""Settings that the families of images share. Imports no torch: help must be instant."""

from dataclasses import dataclass
from typing import Literal

from quintet.engine.config import require_choices
from quintet.shared.tokenizer.config import PixelDataConfig


@dataclass(frozen=True, kw_only=True)
class ImageDataConfig(PixelDataConfig):
    """Images and augmentation."""

    builtin: Literal["scenes", "figures", "figure"] = "scenes"
    """Built-in images: scenes of many textured shapes; or up to four plain figures, or a single
    large one, fully described by their captions (they are never flipped)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(self)

"""Settings of image/clip. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal

from quintet.engine.config import OptimizerConfig, Recipe, require, setting
from quintet.image.config import ImageDataConfig
from quintet.shared.adopt.config import CLIP_FOLDER

Trained = Literal["all", "projections", "image", "text"]

ADOPTS = ("CLIPModel",)
"""The class whose folders are loaded."""


@dataclass(frozen=True, kw_only=True)
class CaptionedDataConfig(ImageDataConfig):
    """Images with captions. They have the size of the model."""

    size: tuple[int, int] = (224, 224)
    """Height and width that images are resized and cropped to: those of the model."""
    builtin: Literal["scenes", "figures", "figure"] = "figures"
    """Built-in images: scenes of many textured shapes; or up to four plain figures, or a single
    large one, fully described by their captions."""
    flip: bool = False
    """Random horizontal flip in training; captions that say left or right would be wrong."""
    min_crop: float = 0.9
    """Smallest random crop, as a fraction of the shorter side; 1: the largest crop."""
    max_missing: float = 0.5
    """Largest fraction of images without a caption, which are skipped with a warning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.max_missing <= 1, "max_missing", self.max_missing, "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class ClipRecipe(Recipe):
    """All settings of a run that adopts a CLIP."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"clip": CLIP_FOLDER})
    """The original; the run keeps a copy."""
    clip: str | None = setting(path=True)
    """Folder of the model and its tokenizer, or a run of this recipe; on the command line also
    --from."""
    train: Trained = "all"
    """What is trained, besides the temperature: everything, both projections, or one tower with its
    projection. The rest is unchanged, bit for bit."""
    images: CaptionedDataConfig = field(default_factory=CaptionedDataConfig)
    """Images and captions."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer and learning rate schedule."""

"""Settings of image/flow. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from quintet.engine.config import require, setting
from quintet.image.config import ImageDataConfig
from quintet.shared.flow.config import FewStepsRecipe, FlowConfig, FlowRecipe, SolvedRecipe

PIXELS = "pixels"
"""In place of a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class ImageFlowConfig(FlowConfig):
    """Generator of images: a flow over the latents of an image tokenizer."""

    enlarge: int = 0
    """Learn to enlarge images by this factor: a small image is a condition, beside the caption, and
    no part is given (known_share). 0: generate without one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.enlarge == 0 or 2 <= self.enlarge <= 16
        require(fits, "enlarge", self.enlarge, "0, or between 2 and 16")

    @property
    def takes_beside(self) -> bool:
        return self.enlarge > 0


@dataclass(frozen=True, kw_only=True)
class PictureSettings(SolvedRecipe):
    """The data of a flow generator of images, of many steps or of few."""

    images: ImageDataConfig = field(default_factory=lambda: ImageDataConfig(builtin="figures"))
    """The data."""
    buckets: int = 1
    """Shapes of training images from a folder, of ratios from 1 : 2 to 2 : 1 and as many pixels as
    `size`: each image is cropped to the nearest one. 1: all are cropped to `size`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.buckets <= 32, "buckets", self.buckets, "between 1 and 32")


@dataclass(frozen=True, kw_only=True)
class ImageFlowRecipe(PictureSettings, FlowRecipe):
    """All settings of a run of a flow generator of images."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"tokenizer": "image/autoencoder"})
    """The tokenizer is frozen and copied into the run folder."""
    stage_families: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {"tokenizer": ("image/vqgan", "shared/adopt")}
    )
    """An autoencoder of our own, or one that is adopted."""
    tokenizer: str | None = setting(path=True, words=(PIXELS,))
    """Run, export or diffusers folder of the trained autoencoder; or `pixels` for none, with a
    model.patch of 4 to 16."""
    model: ImageFlowConfig = field(default_factory=ImageFlowConfig)
    """The transformer; grid and channels are those of the tokenizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size, factor = self.images.size, self.model.enlarge or 1
        whole = not any(side % factor for side in size)
        require(whole, "images.size", size, f"divisible by model.enlarge, {factor}")
        patch, coarse = self.model.patch, self.tokenizer != PIXELS or self.model.patch >= 4
        require(coarse, "model.patch", patch, "4 or more with tokenizer pixels, for example 8")

    def built_in_stage(self, name: str) -> Any:
        if self.tokenizer != PIXELS:
            return None
        from quintet.shared.generation.pixels import PixelLatents

        return PixelLatents(channels=self.images.channels)


@dataclass(frozen=True, kw_only=True)
class ImageFlowFewRecipe(PictureSettings, FewStepsRecipe):
    """All settings of a run that distils a flow generator of images to few steps."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"teacher": "image/flow"})
    """The teacher is frozen and copied into the run folder, its tokenizer with it."""

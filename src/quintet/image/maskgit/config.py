"""Settings of image/maskgit. Plain values only, and no torch: help must be instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from quintet.image.config import ImageDataConfig
from quintet.shared.maskgit.config import MaskedConfig, MaskedRecipe


@dataclass(frozen=True, kw_only=True)
class MaskGitConfig(MaskedConfig):
    """Generator of images: a masked transformer over the ids of an image tokenizer."""


@dataclass(frozen=True, kw_only=True)
class MaskGitRecipe(MaskedRecipe):
    """All settings of an image generator run."""

    stages: ClassVar[Mapping[str, str]] = MappingProxyType({"tokenizer": "image/vqgan"})
    """The tokenizer is frozen and copied into the run folder."""
    model: MaskGitConfig = field(default_factory=MaskGitConfig)
    """The transformer; grid and digits are those of the tokenizer."""
    images: ImageDataConfig = field(default_factory=lambda: ImageDataConfig(builtin="figures"))
    """The data."""

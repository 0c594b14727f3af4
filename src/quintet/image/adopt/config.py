"""Settings of image/adopt. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field

from quintet.image.config import ImageDataConfig
from quintet.shared.adopt.config import AdoptRecipe
from quintet.shared.tokenizer.config import DiscriminatorConfig

ADOPTS = (
    "AutoencoderKL",
    "AsymmetricAutoencoderKL",
    "AutoencoderDC",
    "AutoencoderKLFlux2",
    "AutoencoderKLHunyuanImage",
    "AutoencoderKLQwenImage",
    "AutoencoderTiny",
    "VQModel",
)
"""Classes whose folders are loaded as models of images."""


@dataclass(frozen=True, kw_only=True)
class ImageAdoptRecipe(AdoptRecipe):
    """All settings of a run that adopts an autoencoder of images."""

    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """The discriminator."""
    images: ImageDataConfig = field(default_factory=ImageDataConfig)
    """The data."""

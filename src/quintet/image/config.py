"""What can be set in the image room. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class VQGanVAEConfig:
    """The tokenizer: an encoder, a quantiser and a decoder."""

    channels: int = 3
    """Colour channels of the images."""
    dim: int = 64
    """Width of the first stage."""
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    """Width of each stage as a multiple of `dim`; every stage after the first halves the picture."""
    patch: int = 1
    """Fold patch x patch pixels into channels before the first stage (1: no folding)."""
    blocks: int = 2
    """Residual blocks per stage."""
    attention_layers: int = 1
    """Attention layers at the lowest resolution, in the encoder and in the decoder."""
    quantiser: Literal["fsq", "lfq", "vq"] = "fsq"
    """How latents become ids: finite scalar, look-up free, or a learned codebook."""
    levels: tuple[int, ...] = (8, 8, 8, 5)
    """fsq: steps per latent dimension; the codebook's size is their product."""
    codebook_bits: int = 12
    """lfq and vq: the codebook holds 2 ** codebook_bits codes."""
    entropy_weight: float = 0.05
    """lfq: weight of the entropy term that keeps codes in use."""
    commitment_weight: float = 0.25
    """lfq and vq: weight that keeps the encoder near its codes."""


@dataclass(frozen=True, kw_only=True)
class DiscriminatorConfig:
    """The critic that judges patches of real and reconstructed images."""

    dim: int = 64
    """Width of its first layer."""
    layers: int = 3
    """Stride-2 layers; more of them judge larger patches."""


@dataclass(frozen=True, kw_only=True)
class ImageDataConfig:
    """Which images, and what is done to them."""

    size: tuple[int, int] = (128, 128)
    """Height and width that images are resized and cropped to."""
    flip: bool = True
    """Mirror half of the training images."""
    min_crop: float = 0.8
    """Training crops cover at least this share of the shorter side; 1 always takes the largest centre crop."""
    valid_fraction: float = 0.05
    """Share of a folder held out for validation, chosen by the seed."""
    valid_limit: int = 512
    """At most so many held-out images are measured at each evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training scenes when no folder is given."""
    max_pixels: int = 64_000_000
    """Images with more pixels than this are skipped before they are decoded."""

"""What can be set in the image room. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from typing import Literal

from quintet.engine.config import OptimiserConfig, require, require_held_out
from quintet.shared.tokenizer_config import TokenizerRecipe, require_divisible


@dataclass(frozen=True, kw_only=True)
class VQGanVAEConfig:
    """The tokenizer: an encoder, a quantiser and a decoder."""

    channels: int = 3
    """Colour channels of the images."""
    dim: int = 64
    """Width of the first stage."""
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    """Width of each stage as a multiple of `dim`; each after the first halves the picture."""
    patch: int = 1
    """Fold patch x patch pixels into channels before the first stage (1: no folding)."""
    blocks: tuple[int, ...] = (2,)
    """Residual blocks of each stage; a single number serves every stage."""
    attention_layers: int = 1
    """Attention layers (each with a residual block) at the lowest resolution, in both halves."""
    quantiser: Literal["fsq", "lfq", "vq"] = "fsq"
    """How latents become ids: finite scalar, look-up free, or a learned codebook."""
    levels: tuple[int, ...] = (8, 8, 8, 5)
    """fsq: steps per latent dimension; the codebook's size is their product."""
    spread_weight: float = 0.05
    """fsq: weight of the term that holds latent dimensions apart, so that codes are in use."""
    codebook_bits: int = 12
    """lfq and vq: the codebook holds 2 ** codebook_bits codes."""
    entropy_weight: float = 0.2
    """lfq: weight of the entropy term that keeps codes in use."""
    commitment_weight: float = 0.25
    """lfq and vq: weight that keeps the encoder near its codes."""

    def __post_init__(self) -> None:
        if len(self.blocks) not in (1, len(self.multipliers)):
            raise ValueError(
                f"blocks has {len(self.blocks)} numbers for {len(self.multipliers)} stages:"
                " give one number, or one for each entry of multipliers"
            )
        if self.patch < 1 or self.dim < 4 or not self.multipliers or min(self.multipliers) < 1:
            raise ValueError(
                f"patch {self.patch}, dim {self.dim} and multipliers {self.multipliers} must be"
                " positive, and dim at least 4"
            )
        if self.quantiser == "fsq" and (not self.levels or min(self.levels) < 2):
            raise ValueError(f"levels must be at least 2 each, not {self.levels}")
        if self.quantiser != "fsq" and not 1 <= self.codebook_bits <= 30:
            raise ValueError(f"codebook_bits must be between 1 and 30, not {self.codebook_bits}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage, from the finest to the coarsest."""
        return tuple(self.dim * multiplier for multiplier in self.multipliers)

    @property
    def blocks_per_stage(self) -> tuple[int, ...]:
        """Residual blocks of each stage."""
        return self.blocks if len(self.blocks) > 1 else self.blocks * len(self.multipliers)

    @property
    def factor(self) -> int:
        """Pixels along each side of the patch that one id stands for."""
        return self.patch * 2 ** (len(self.multipliers) - 1)


@dataclass(frozen=True, kw_only=True)
class DiscriminatorConfig:
    """The critic that judges patches of real and reconstructed images."""

    channels: int = 3
    """Colour channels of the images."""
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
    """Training crops cover at least this share of the shorter side; 1 takes the largest crop."""
    valid_fraction: float = 0.05
    """Share of a folder held out for validation, chosen by the seed."""
    valid_limit: int = 512
    """At most so many held-out images are measured at each evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training scenes when no folder is given."""
    max_pixels: int = 64_000_000
    """Images with more pixels than this are skipped before they are decoded."""
    max_bytes: int = 256_000_000
    """Files with more bytes than this are skipped before they are opened."""

    def __post_init__(self) -> None:
        require(min(self.size) >= 1, "size", self.size, "a height and a width of at least 1")
        require(0 < self.min_crop <= 1, "min_crop", self.min_crop, "above 0 and at most 1")
        require_held_out(self)


@dataclass(frozen=True, kw_only=True)
class VQGanRecipe(TokenizerRecipe):
    """Everything that a run of the image tokenizer is made of."""

    model: VQGanVAEConfig = field(default_factory=VQGanVAEConfig)
    """The tokenizer."""
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """The critic."""
    images: ImageDataConfig = field(default_factory=ImageDataConfig)
    """The pictures."""
    vae: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How the tokenizer learns."""
    critic: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(average=0.0))
    """How the critic learns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_divisible(self.images.size, self.model.factor, "images.size")

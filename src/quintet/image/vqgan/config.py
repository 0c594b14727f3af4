"""Settings of image/vqgan. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field

from quintet.image.config import ImageDataConfig
from quintet.nn.quantisers.config import QuantiserConfig
from quintet.shared.tokenizer.config import (
    DiscriminatorConfig,
    TokenizerRecipe,
    require_channels,
    require_divisible,
    require_quantiser,
)


@dataclass(frozen=True, kw_only=True)
class VQGanVAEConfig(QuantiserConfig):
    """The tokenizer: an encoder, a quantiser and a decoder."""

    channels: int = 3
    """Colour channels of the images."""
    dim: int = 64
    """Width of the first stage."""
    channel_multipliers: tuple[int, ...] = (1, 2, 4, 4)
    """Width of each stage as a multiple of `dim`; stages after the first downsample by 2."""
    patch_size: int = 1
    """Side of the patches of pixels that become channels before the first stage (1: none)."""
    num_res_blocks: tuple[int, ...] = (2,)
    """Residual blocks per stage: one number for all stages, or one for each."""
    attention_layers: int = 1
    """Attention layers (each with a residual block) at the lowest resolution."""

    def __post_init__(self) -> None:
        require_quantiser(self)
        stages = len(self.channel_multipliers)
        if len(self.num_res_blocks) not in (1, stages):
            raise ValueError(
                f"num_res_blocks has {len(self.num_res_blocks)} entries for {stages} stages:"
                " give one number, or one for each entry of channel_multipliers"
            )
        if self.patch_size < 1 or self.dim < 4 or min(self.channel_multipliers, default=0) < 1:
            raise ValueError(
                f"patch_size {self.patch_size}, dim {self.dim} and channel_multipliers"
                f" {self.channel_multipliers} must be positive, and dim at least 4"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage, from the finest to the coarsest."""
        return tuple(self.dim * multiplier for multiplier in self.channel_multipliers)

    @property
    def blocks_per_stage(self) -> tuple[int, ...]:
        """Residual blocks of each stage."""
        return self.num_res_blocks * (len(self.channel_multipliers) // len(self.num_res_blocks))

    @property
    def factor(self) -> int:
        """Spatial downsampling: one id covers factor x factor pixels."""
        return self.patch_size * 2 ** (len(self.channel_multipliers) - 1)


@dataclass(frozen=True, kw_only=True)
class VQGanRecipe(TokenizerRecipe):
    """All settings of an image tokenizer run."""

    model: VQGanVAEConfig = field(default_factory=VQGanVAEConfig)
    """The tokenizer."""
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """The discriminator."""
    images: ImageDataConfig = field(default_factory=ImageDataConfig)
    """The data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_channels(self.images.channels, self.model.channels, "images.channels")
        require_divisible(self.images.size, self.model.factor, "images.size")

"""Settings of tokenizer training with discriminators. Imports no torch: help must be instant."""

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from quintet.engine.config import OptimizerConfig, Recipe, require, setting
from quintet.nn.quantisers.config import QuantiserConfig
from quintet.shared.config import DataConfig


@dataclass(frozen=True, kw_only=True)
class TokenizerLossConfig:
    """Losses of a tokenizer."""

    l1: float = 1.0
    """Weight of the mean absolute error."""
    l2: float = 2.0
    """Weight of the mean squared error."""
    perceptual: float = 0.5
    """Weight of the perceptual distance; 0 disables it."""
    vgg: str | None = setting(path=True, free=True)
    """Local safetensors file of VGG16 or LPIPS weights; default: a distance without weights."""
    adversarial: Literal["none", "hinge", "relativistic"] = "hinge"
    """Adversarial loss; none trains without discriminators."""
    adversarial_from: float = 0.6
    """Discriminators start after this fraction of the run."""
    adversarial_share: float = 0.5
    """Norm of the adversarial gradient, relative to the reconstruction gradient."""
    adversarial_cap: float = 1.0
    """Upper bound of the adversarial weight."""
    adversarial_warmup_steps: int = 200
    """Warm-up steps of the adversarial weight."""
    penalty: Literal["none", "r1", "r1_tangent", "lecam"] = "r1_tangent"
    """Discriminator regularisation: exact R1, R1 along a random direction, or LeCam."""
    penalty_weight: float = 0.1
    """Weight of the penalty."""
    penalty_every: int = 4
    """Apply the penalty every n-th step, with its weight multiplied by n (lazy regularisation)."""

    def __post_init__(self) -> None:
        start = self.adversarial_from
        require(0 <= start <= 1, "adversarial_from", start, "a fraction between 0 and 1")
        require(self.penalty_every >= 1, "penalty_every", self.penalty_every, "1 step or more")
        cap = self.adversarial_cap
        require(cap >= 1e-4, "adversarial_cap", cap, "1e-4 or more; or set adversarial none")


@dataclass(frozen=True, kw_only=True)
class PixelDataConfig(DataConfig):
    """Size and augmentation of images or frames."""

    size: tuple[int, int] = (128, 128)
    """Height and width that images and frames are resized and cropped to."""
    channels: int = 3
    """Colour channels, as many as the model's: 1 (grey), 3 (RGB) or 4 (RGBA, images only)."""
    flip: bool = True
    """Random horizontal flip in training."""
    min_crop: float = 0.8
    """Smallest random crop, as a fraction of the shorter side; 1: the largest crop."""
    max_pixels: int = 64_000_000
    """Files with more pixels per image or frame are skipped before they are decoded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(min(self.size) >= 1, "size", self.size, "a height and a width of at least 1")
        require(0 < self.min_crop <= 1, "min_crop", self.min_crop, "above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class DiscriminatorConfig:
    """A patch discriminator of images or frames; it has the channels of the model."""

    dim: int = 64
    """Width of its first layer."""
    layers: int = 3
    """Stride-2 layers; more layers have a larger receptive field."""

    def __post_init__(self) -> None:
        require(self.layers >= 1, "layers", self.layers, "1 or more")


@dataclass(frozen=True, kw_only=True)
class TokenizerRecipe(Recipe):
    """A training run of a tokenizer and its discriminators."""

    losses: TokenizerLossConfig = field(default_factory=TokenizerLossConfig)
    """The losses."""
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer of the tokenizer."""
    discriminator_optim: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(ema_decay=0.0)
    )
    """Optimizer of the discriminators."""

    @property
    def tokenizer_start(self) -> int:
        """The tokenizer's first step; discriminators that start earlier see it as it was."""
        return 0

    @property
    def adversarial_start(self) -> int:
        """The discriminators' first step."""
        return round(self.losses.adversarial_from * (self.planned_steps or self.steps))


def discriminator_optimizer(learning_rate: float, warmup_steps: int) -> OptimizerConfig:
    """Optimizer of a discriminator: the betas of VQGAN, and no weight average."""
    return OptimizerConfig(
        learning_rate=learning_rate, warmup_steps=warmup_steps, betas=(0.5, 0.9), ema_decay=0.0
    )


def require_quantiser(config: QuantiserConfig) -> None:
    if config.quantiser == "fsq":
        valid = bool(config.levels) and min(config.levels) >= 2
        require(valid, "levels", config.levels, "2 or more each")
        codes = prod(config.levels)
        require(codes <= 2**62, "levels", config.levels, "at most 2 ** 62 when multiplied (an id)")
    elif config.quantiser in ("kl", "bounded"):
        channels, least = config.latent_channels, 2 if config.quantiser == "bounded" else 1
        require(channels >= least, "latent_channels", channels, f"{least} or more")
        for name in ("kl_weight", "latent_noise"):
            require(getattr(config, name) >= 0, name, getattr(config, name), "0 or more")
    else:
        bits, least = config.codebook_bits, 2 if config.quantiser == "bsq" else 1
        require(least <= bits <= 30, "codebook_bits", bits, f"between {least} and 30")


def require_channels(channels: int, of_model: int, name: str) -> None:
    require(channels == of_model, name, channels, f"model.channels, {of_model}")


def require_divisible(size: tuple[int, int], factor: int, name: str) -> None:
    divisible = not any(side % factor for side in size)
    require(divisible, name, size, f"divisible by the tokenizer's downsampling factor {factor}")

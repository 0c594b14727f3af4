"""VQGanVAE, the image tokenizer (VQGAN, arXiv 2012.09841; the tokenizer of Muse).

Shapes: b samples, c channels, h x w pixels in 0..1; f = `factor`; d = width of the last stage.

    images (b, c, h, w) -> encode -> latents (b, d, h/f, w/f) -> quantiser -> values, codes
    values (b, d, h/f, w/f) -> decode -> images (b, c, h, w)

Codes are ids (b, h/f, w/f), or latents (b, channels, h/f, w/f) of a continuous bottleneck.
"""

from typing import Any

from torch import Tensor, nn

from quintet.compat.models import VQGAN_VAE, model_keywords
from quintet.engine.settings import updated
from quintet.image.vqgan.config import VQGanVAEConfig
from quintet.nn.blocks import AttentionBlock, Downsample, Head, ResidualBlock, Stem, Upsample
from quintet.nn.precision import full_precision
from quintet.nn.quantisers.build import build_quantiser
from quintet.nn.quantisers.config import codebook_of_size
from quintet.shared.tokenizer.model import (
    TokenizerModel,
    check_divisible,
    check_floats,
)


def middle_blocks(dim: int, layers: int) -> list[nn.Module]:
    """Attention layers at the lowest resolution, each followed by a residual block."""
    return [block(dim) for _ in range(layers) for block in (AttentionBlock, ResidualBlock)]


def build_encoder(config: VQGanVAEConfig) -> nn.Sequential:
    widths = config.widths
    layers: list[nn.Module] = [Stem(config.channels, widths[0], config.patch_size)]
    for index, (dim, count) in enumerate(zip(widths, config.blocks_per_stage)):
        if index:
            layers.append(Downsample(widths[index - 1], dim))
        layers += [ResidualBlock(dim) for _ in range(count)]
    return nn.Sequential(*layers, *middle_blocks(widths[-1], config.attention_layers))


def build_decoder(config: VQGanVAEConfig) -> nn.Sequential:
    widths, counts = config.widths[::-1], config.blocks_per_stage[::-1]
    layers = middle_blocks(widths[0], config.attention_layers)
    for index, (dim, count) in enumerate(zip(widths, counts)):
        if index:
            layers.append(Upsample(widths[index - 1], dim))
        layers += [ResidualBlock(dim) for _ in range(count)]
    return nn.Sequential(*layers, Head(widths[-1], config.channels, config.patch_size))


def config_from_keywords(config: VQGanVAEConfig | None = None, **keywords: Any) -> VQGanVAEConfig:
    """A configuration with fields changed, or muse-maskgit-pytorch's `layers` and `codebook_size`.

    `layers` downsamples by 2 each, with doubling widths: first a patch of 2, then stages.
    """
    config = config or VQGanVAEConfig()
    keywords = model_keywords(VQGAN_VAE, keywords, config, ("layers", "codebook_size"))
    layers, size = keywords.pop("layers", None), keywords.pop("codebook_size", None)
    if layers is not None:
        keywords |= {"patch_size": 2, "channel_multipliers": tuple(2**i for i in range(layers))}
    if size is not None:
        keywords |= codebook_of_size(size)
    return updated(config, keywords)


class VQGanVAE(TokenizerModel):
    """The tokenizer, built from a configuration or from its fields as keywords."""

    Config = VQGanVAEConfig
    what, positions = "images", "h, w"
    compared_on = "pictures"

    def __init__(self, config: VQGanVAEConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        self.config = config = config_from_keywords(config, **keywords)
        self.factor = config.factor
        self.encoder = build_encoder(config)
        self.quantiser = build_quantiser(config, config.widths[-1])
        self.decoder = build_decoder(config)

    def encode(self, images: Tensor) -> Tensor:
        """Latents before the quantiser."""
        self.check(images)
        return self.encoder(images * 2 - 1)

    def decode(self, values: Tensor) -> Tensor:
        """Images from quantised values, not clamped."""
        return full_precision(self.decoder(values)) * 0.5 + 0.5

    def grid(self, images: Tensor) -> tuple[int, ...]:
        return images.shape[2] // self.factor, images.shape[3] // self.factor

    def decode_from_ids(self, ids: Tensor) -> Tensor:
        """Images in 0..1 from ids (b, h/f, w/f)."""
        self.require("ids")
        return self.decode_from_codes(ids)

    def check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            raise ValueError(
                f"expected images (b, {self.config.channels}, h, w), not {tuple(images.shape)}"
            )
        check_floats(images, "images")
        check_divisible(images.shape[2], images.shape[3], self.factor, "images")


Model = VQGanVAE

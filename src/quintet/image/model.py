"""VQGanVAE: images to a grid of ids and back (VQGAN, arXiv 2012.09841; Muse's tokenizer).

Shapes: b samples, c colours, h x w pixels in 0..1; f = `factor`; d = width of the last stage.

    images (b, c, h, w) -> encode -> latents (b, d, h/f, w/f) -> quantiser -> values, ids
    values (b, d, h/f, w/f) -> decode -> images (b, c, h, w)
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quintet.engine.pretrained import Pretrained
from quintet.image.config import DiscriminatorConfig, VQGanVAEConfig
from quintet.nn.blocks import AttentionBlock, Down, Head, ResidualBlock, Stem, Up
from quintet.nn.codebook import CodebookUse, codebook_use, levels_of
from quintet.nn.discriminator import PatchDiscriminator
from quintet.nn.fsq import FSQ
from quintet.nn.lfq import LFQ
from quintet.nn.quantise import full_precision
from quintet.nn.statistics import CommitContext, Commits
from quintet.nn.vq import VectorQuantiser


class Reconstruction(NamedTuple):
    images: Tensor
    """(b, c, h, w), fp32, not clamped: a clamp would stop the gradient of what is out of range."""
    ids: Tensor
    """(b, h/f, w/f)."""
    quantiser_loss: Tensor
    """0-dim."""


def residual_blocks(dim: int, count: int) -> list[nn.Module]:
    return [ResidualBlock(dim) for _ in range(count)]


def mixer(dim: int, layers: int) -> list[nn.Module]:
    """At the lowest resolution: attention layers, each followed by a residual block."""
    return [block(dim) for _ in range(layers) for block in (AttentionBlock, ResidualBlock)]


def build_encoder(config: VQGanVAEConfig) -> nn.Sequential:
    widths = config.widths
    layers: list[nn.Module] = [Stem(config.channels, widths[0], config.patch)]
    for index, (dim, count) in enumerate(zip(widths, config.blocks_per_stage)):
        if index:
            layers.append(Down(widths[index - 1], dim))
        layers += residual_blocks(dim, count)
    return nn.Sequential(*layers, *mixer(widths[-1], config.attention_layers))


def build_decoder(config: VQGanVAEConfig) -> nn.Sequential:
    widths, counts = config.widths[::-1], config.blocks_per_stage[::-1]
    layers = mixer(widths[0], config.attention_layers)
    for index, (dim, count) in enumerate(zip(widths, counts)):
        if index:
            layers.append(Up(widths[index - 1], dim))
        layers += residual_blocks(dim, count)
    return nn.Sequential(*layers, Head(widths[-1], config.channels, config.patch))


def build_quantiser(config: VQGanVAEConfig) -> FSQ | LFQ | VectorQuantiser:
    dim = config.widths[-1]
    match config.quantiser:
        case "fsq":
            return FSQ(dim, config.levels, spread_weight=config.spread_weight)
        case "lfq":
            return LFQ(
                dim,
                config.codebook_bits,
                entropy_weight=config.entropy_weight,
                commitment_weight=config.commitment_weight,
            )
        case "vq":
            return VectorQuantiser(
                dim, 2**config.codebook_bits, commitment_weight=config.commitment_weight
            )


def config_from_keywords(**keywords: Any) -> VQGanVAEConfig:
    """A configuration from its fields, or from `layers` and `codebook_size` of older packages.

    `layers` halvings with doubling widths: the first one folds pixels, the others are stages.
    """
    if isinstance(keywords.get("blocks"), int):
        keywords["blocks"] = (keywords["blocks"],)
    layers, size = keywords.pop("layers", None), keywords.pop("codebook_size", None)
    if layers is not None:
        keywords |= {"patch": 2, "multipliers": tuple(2**i for i in range(layers))}
    if size is not None:
        bits = size.bit_length() - 1
        if size != 2**bits:
            raise ValueError(f"codebook_size must be a power of two, not {size}: or set `levels`")
        keywords |= {"codebook_bits": bits, "levels": levels_of(bits)}
    return VQGanVAEConfig(**keywords)


class VQGanVAE(Pretrained, nn.Module):
    """The tokenizer. Build it from a configuration, or from its fields as keywords."""

    Config = VQGanVAEConfig

    def __init__(self, config: VQGanVAEConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        if config is None:
            config = config_from_keywords(**keywords)
        elif keywords:
            config = replace(config, **keywords)
        self.config = config
        self.factor = config.factor
        self.encoder = build_encoder(config)
        self.quantiser = build_quantiser(config)
        self.decoder = build_decoder(config)

    @property
    def codebook_size(self) -> int:
        return self.quantiser.codes

    def forward(self, images: Tensor) -> Reconstruction:
        quantised = self.quantiser(self.encode(images))
        return Reconstruction(self.decode(quantised.values), quantised.ids, quantised.loss)

    def encode(self, images: Tensor) -> Tensor:
        """Latents before the quantiser."""
        self.check(images)
        return self.encoder(images * 2 - 1)

    def decode(self, values: Tensor) -> Tensor:
        """Images from what the quantiser returned, not clamped."""
        return full_precision(self.decoder(values)) * 0.5 + 0.5

    @torch.no_grad()
    def tokenize(self, images: Tensor) -> Tensor:
        """(b, h/f, w/f) integers below `codebook_size`."""
        return self.quantiser.to_ids(self.encode(images))

    @torch.no_grad()
    def decode_from_ids(self, ids: Tensor) -> Tensor:
        """Images in 0..1."""
        return self.decode(self.quantiser.ids_to_values(ids)).clamp(0, 1)

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Tensor:
        """Images in 0..1 after a trip through their ids."""
        return self.decode_from_ids(self.tokenize(images))

    def codebook_use(self, ids: Tensor) -> CodebookUse:
        """How much of the codebook these ids use; give it many ids for each code."""
        return codebook_use(ids, self.codebook_size)

    def commit(self, at: CommitContext) -> None:
        """Apply the statistics of the step, where the quantiser keeps any."""
        if isinstance(self.quantiser, Commits):
            self.quantiser.commit(at)

    def check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            raise ValueError(
                f"expected images (b, {self.config.channels}, h, w), not {tuple(images.shape)}"
            )
        height, width = images.shape[-2:]
        if height % self.factor or width % self.factor:
            raise ValueError(
                f"images of {height}x{width} pixels do not divide by the factor {self.factor}:"
                f" resize or crop them to {height // self.factor * self.factor or self.factor}"
                f"x{width // self.factor * self.factor or self.factor}"
            )


class Discriminator(PatchDiscriminator):
    """The critic of a VQGanVAE, from its configuration."""

    def __init__(self, config: DiscriminatorConfig | None = None) -> None:
        self_config = config or DiscriminatorConfig()
        super().__init__(
            channels=self_config.channels, dim=self_config.dim, layers=self_config.layers
        )
        self.config = self_config

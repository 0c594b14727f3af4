"""Pixels in place of latents: a tokenizer of nothing, for a flow with large patches."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from quintet.nn.precision import full_precision
from quintet.shared.adopt.bottlenecks import AdoptedLatents
from quintet.shared.tokenizer.model import TokenizerModel, check_floats

LEVELS = 255.0


@dataclass(frozen=True, kw_only=True)
class PixelLatentsConfig:
    """What there is to know of pixels."""

    channels: int = 3
    """Channels of images."""


class PixelLatents(TokenizerModel):
    """Latents (b, c, h, w) that are the pixels in 0..255, rounded: `ImageFlow(PixelLatents(),
    image_size=64, patch=8)`. They are cached in 8 bits and normalised like other latents."""

    Config = PixelLatentsConfig
    what, positions, factor = "images", "h, w", 1
    cached_as: ClassVar[torch.dtype] = torch.uint8
    config: PixelLatentsConfig

    def __init__(self, config: PixelLatentsConfig | None = None, *, channels: int = 3) -> None:
        nn.Module.__init__(self)
        self.config = config or PixelLatentsConfig(channels=channels)
        self.quantiser = AdoptedLatents(self.config.channels)
        self.scale = nn.Parameter(torch.tensor(LEVELS), requires_grad=False)

    @classmethod
    def label(cls) -> str:
        return "shared/pixels"

    def encode(self, pixels: Tensor) -> Tensor:
        channels = self.config.channels
        if pixels.ndim != 4 or pixels.shape[1] != channels:
            raise ValueError(f"expected images (b, {channels}, h, w), not {tuple(pixels.shape)}")
        check_floats(pixels, self.what)
        return (full_precision(pixels).clamp(0, 1) * self.scale).round()

    def decode(self, values: Tensor) -> Tensor:
        return full_precision(values) / self.scale

    def grid(self, pixels: Tensor) -> tuple[int, ...]:
        return pixels.shape[-2], pixels.shape[-1]

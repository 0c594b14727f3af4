"""Base class of the image and video tokenizers."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from quintet.compat.calls import TOKENIZER_CALL, call_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.nn.quantisers.base import Bottleneck, DiscreteBottleneck
from quintet.nn.quantisers.codebook import CodebookUsage, codebook_usage
from quintet.nn.quantisers.continuous import ContinuousBottleneck
from quintet.nn.statistics import CommitContext, Commits
from quintet.shared.tokenizer.config import TokenizerLossConfig


class Reconstruction(NamedTuple):
    output: Tensor
    """Images or clips, fp32, not clamped: a clamp would zero gradients out of range."""
    ids: Tensor | None
    """One integer per latent position; None of a continuous bottleneck."""
    quantiser_loss: Tensor
    """0-dim."""
    latents: Tensor | None = None
    """Channels per latent position, of a continuous bottleneck; without noise."""
    kl: Tensor | None = None
    """(b,): nats per element of the latents, of a Gaussian bottleneck."""


class PixelLoss(NamedTuple):
    loss: Tensor
    """0-dim: the weighted sum."""
    terms: dict[str, Tensor]
    """0-dim each, not weighted."""


class TokenizerModel(Pretrained, nn.Module):
    """An encoder, a bottleneck (a quantiser, or a continuous one) and a decoder.

    Codes are ids of a quantiser and latents of a continuous bottleneck.
    """

    Losses: ClassVar[type[TokenizerLossConfig]] = TokenizerLossConfig
    factor: int
    """Pixels per id along each side."""
    cached_as: ClassVar[torch.dtype] = torch.float16
    """Type of latents in the cache of a generator."""

    encode: Callable[[Tensor], Tensor]
    """Images or clips in 0..1 -> latents before the quantiser."""
    quantiser: Bottleneck
    decode: Callable[[Tensor], Tensor]
    """Quantised values -> images or clips, not clamped."""
    positions: ClassVar[str]
    compared_on: ClassVar[Literal["pictures", "sounds"] | None] = None
    """What `quintet compare` measures such models on."""
    """Axes of codes, after the batch and the channels."""
    grid: Callable[[Tensor], tuple[int, ...]]
    """Images or clips -> positions of their codes along each axis."""
    what: ClassVar[str]
    """Plural noun for the samples in messages."""

    def forward(self, pixels: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """`noise` is for the training of a continuous bottleneck: normal, of `noise_shape`."""
        latents = self.encode(pixels)
        quantised = self.quantiser(latents) if noise is None else self.quantiser(latents, noise)
        values, ids, loss, *more = quantised
        return Reconstruction(self.decode(values), ids, loss, *more)

    def noise_shape(self, pixels: Tensor) -> tuple[int, ...] | None:
        """Shape of a sample's noise in training; None of a quantiser."""
        if isinstance(self.quantiser, ContinuousBottleneck):
            return (self.quantiser.channels, *self.grid(pixels))
        return None

    # -- custom training loops ------------------------------------------------------------------

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if keywords.keys() & TOKENIZER_CALL.keys():
            keywords = call_keywords(TOKENIZER_CALL, keywords)
        if keywords.pop("return_loss", False):
            return self.loss(*args, **keywords)
        return super().__call__(*args, **keywords)

    def loss(self, pixels: Tensor, losses: TokenizerLossConfig | None = None) -> Tensor:
        """The trainer's loss of images or clips in 0..1, without its perceptual and adversarial
        parts, which need further networks."""
        shape = self.noise_shape(pixels) if self.training else None
        noise = None if shape is None else pixels.new_empty(len(pixels), *shape).normal_()
        out = super().__call__(pixels, noise)
        loss = self.pixel_loss(out.output, pixels, losses or self.Losses()).loss
        return loss + out.quantiser_loss

    def pixel_loss(self, output: Tensor, target: Tensor, losses: TokenizerLossConfig) -> PixelLoss:
        error = output - target
        l1, l2 = error.abs().mean(), error.square().mean()
        return PixelLoss(losses.l1 * l1 + losses.l2 * l2, {"l1": l1})

    def copy_for_eval(self) -> Self:
        """A copy in eval mode."""
        return copy.deepcopy(self).eval()

    def get_encoded_fmap_size(self, image_size: int) -> int:
        """Ids along the side of an image of this size."""
        return image_size // self.factor

    def measured(self, metrics: Mapping[str, float]) -> None:
        """The scale of the latents, which a diffusion model trained on them needs."""
        if "latent_std" in metrics:
            scale = 1 / max(metrics["latent_std"], 1e-6)
            self.config = replace(self.config, latent_scale=scale)

    # -- codes ----------------------------------------------------------------------------------

    @torch.no_grad()
    def to_codes(self, pixels: Tensor, /) -> Tensor:
        """Images or clips in 0..1 -> ids (b, *positions), or latents (b, channels, *positions); kl:
        the means."""
        check_range(pixels, self.what)
        return self.quantiser.to_codes(self.encode(pixels))

    @torch.no_grad()
    def decode_from_codes(self, codes: Tensor) -> Tensor:
        """Codes -> images or clips in 0..1."""
        self.quantiser.check(codes, self.positions)
        return self.decode(self.quantiser.codes_to_values(codes)).clamp(0, 1)

    def reconstruct(self, pixels: Tensor, /) -> Tensor:
        """Images or clips in 0..1, encoded to codes and decoded."""
        return self.decode_from_codes(self.to_codes(pixels))

    def tokenize(self, pixels: Tensor, /) -> Tensor:
        """(b, *positions) integers below `codebook_size`."""
        self.require("ids")
        return self.to_codes(pixels)

    def encode_latents(self, pixels: Tensor, /) -> Tensor:
        """(b, channels, *positions) of a continuous bottleneck; kl: the means."""
        self.require("latents")
        return self.to_codes(pixels)

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Images or clips in 0..1 from latents."""
        self.require("latents")
        return self.decode_from_codes(latents)

    def require(self, codes: Literal["ids", "latents"]) -> None:
        """Raise TypeError if the bottleneck has others."""
        if self.quantiser.code_name != codes:
            calls = INSTEAD_OF_IDS if codes == "ids" else INSTEAD_OF_LATENTS
            raise TypeError(f"quantiser {self.config.quantiser!r} has no {codes}: {calls}")

    @property
    def codebook_size(self) -> int:
        self.require("ids")
        return cast(DiscreteBottleneck, self.quantiser).codebook_size

    def codebook_usage(self, ids: Tensor) -> CodebookUsage:
        """Usage of the codebook by these ids; meaningful with many more ids than codes."""
        return codebook_usage(ids, self.codebook_size)

    def commit(self, context: CommitContext) -> None:
        """Apply the quantiser's statistics of the step, if it has any."""
        if isinstance(self.quantiser, Commits):
            self.quantiser.commit(context)


INSTEAD_OF_IDS = "its latents are continuous; call encode_latents and decode_latents"
INSTEAD_OF_LATENTS = "call tokenize, or build the model with quantiser='kl' or 'bounded'"


def check_divisible(height: int, width: int, factor: int, what: str) -> None:
    if height % factor or width % factor:
        raise ValueError(
            f"{what} of {height}x{width} pixels are not divisible by the downsampling factor"
            f" {factor}: resize or crop them to {height // factor * factor or factor}"
            f"x{width // factor * factor or factor}"
        )


def check_range(pixels: Tensor, what: str) -> None:
    """Synchronises with the device: not for training. Resizing may overshoot the range a little."""
    if not pixels.numel() or not pixels.is_floating_point():
        return
    if not -0.1 <= pixels.min() <= pixels.max() <= 1.1:
        raise ValueError(
            f"values of {what} range from {pixels.min():.3g} to {pixels.max():.3g}, but the model"
            " takes 0 to 1: divide uint8 by 255, or map -1..1 to 0..1"
        )


def check_floats(pixels: Tensor, what: str) -> None:
    if not pixels.is_floating_point():
        raise ValueError(f"expected {what} in 0..1, not {pixels.dtype}: divide them by 255")

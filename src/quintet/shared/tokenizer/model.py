"""Base class of the image and video tokenizers."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from quintet.engine.models.pretrained import Pretrained
from quintet.nn.quantisers.binary import BinaryQuantiser
from quintet.nn.quantisers.codebook import CodebookUsage, codebook_usage
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.vq import VectorQuantiser
from quintet.nn.statistics import CommitContext, Commits
from quintet.shared.tokenizer.config import TokenizerLossConfig


class Reconstruction(NamedTuple):
    output: Tensor
    """Images or clips, fp32, not clamped: a clamp would zero gradients out of range."""
    ids: Tensor
    """One integer per latent position."""
    quantiser_loss: Tensor
    """0-dim."""


class PixelLoss(NamedTuple):
    loss: Tensor
    """0-dim: the weighted sum."""
    terms: dict[str, Tensor]
    """0-dim each, not weighted."""


class TokenizerModel(Pretrained, nn.Module):
    """An encoder, a quantiser and a decoder."""

    Losses: ClassVar[type[TokenizerLossConfig]] = TokenizerLossConfig
    factor: int
    """Pixels per id along each side."""

    encode: Callable[[Tensor], Tensor]
    """Images or clips in 0..1 -> latents before the quantiser."""
    quantiser: FSQ | BinaryQuantiser | VectorQuantiser
    decode: Callable[[Tensor], Tensor]
    """Quantised values -> images or clips, not clamped."""
    tokenize: Callable[[Tensor], Tensor]
    """Images or clips in 0..1 -> ids."""
    decode_from_ids: Callable[[Tensor], Tensor]
    """Ids -> images or clips in 0..1."""

    def forward(self, pixels: Tensor) -> Reconstruction:
        quantised = self.quantiser(self.encode(pixels))
        return Reconstruction(self.decode(quantised.values), quantised.ids, quantised.loss)

    # -- custom training loops ------------------------------------------------------------------

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if keywords.pop("return_loss", False):
            return self.loss(*args, **keywords)
        for name in ("return_recon", "return_recons", "return_discr_loss", "return_codes"):
            if keywords.pop(name, False):
                raise TypeError(f"{name}=True is not there: {INSTEAD[name]}")
        return super().__call__(*args, **keywords)

    def loss(self, pixels: Tensor, losses: TokenizerLossConfig | None = None) -> Tensor:
        """The trainer's loss of images or clips in 0..1, without its perceptual and adversarial
        parts, which need further networks."""
        output, _, quantiser_loss = super().__call__(pixels)
        return self.pixel_loss(output, pixels, losses or self.Losses()).loss + quantiser_loss

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

    @property
    def codebook_size(self) -> int:
        return self.quantiser.codebook_size

    def codebook_usage(self, ids: Tensor) -> CodebookUsage:
        """Usage of the codebook by these ids; meaningful with many more ids than codes."""
        return codebook_usage(ids, self.codebook_size)

    def commit(self, context: CommitContext) -> None:
        """Apply the quantiser's statistics of the step, if it has any."""
        if isinstance(self.quantiser, Commits):
            self.quantiser.commit(context)


INSTEAD = {
    "return_recon": "call reconstruct, or take output of what the model returns",
    "return_recons": "call reconstruct, or take output of what the model returns",
    "return_codes": "call tokenize, or take ids of what the model returns",
    "return_discr_loss": "the discriminators belong to the trainer; build your own from"
    " quintet.nn.adversarial",
}


def check_divisible(height: int, width: int, factor: int, what: str) -> None:
    if height % factor or width % factor:
        raise ValueError(
            f"{what} of {height}x{width} pixels are not divisible by the downsampling factor"
            f" {factor}: resize or crop them to {height // factor * factor or factor}"
            f"x{width // factor * factor or factor}"
        )


def check_ids(ids: Tensor, axes: str, codebook_size: int) -> None:
    """Ids from outside of the model. Synchronises with the device: not for training."""
    if ids.ndim != axes.count(",") + 1 or ids.is_floating_point():
        raise ValueError(f"expected integer ids ({axes}), not {ids.dtype} {tuple(ids.shape)}")
    if ids.numel() and not 0 <= ids.min() <= ids.max() < codebook_size:
        raise ValueError(
            f"ids range from {ids.min()} to {ids.max()}, outside 0 … {codebook_size - 1}; the"
            f" codebook has {codebook_size} codes: decode with the model that encoded them"
        )


def check_range(pixels: Tensor, what: str) -> None:
    """Synchronises with the device: not for training. Resizing may overshoot the range a little."""
    if not pixels.numel() or not pixels.is_floating_point():
        return
    if not -0.1 <= pixels.min() <= pixels.max() <= 1.1:
        raise ValueError(
            f"{what} values range from {pixels.min():.3g} to {pixels.max():.3g}, but the model"
            " takes 0 to 1: divide uint8 by 255, or map -1..1 to 0..1"
        )


def check_floats(pixels: Tensor, what: str) -> None:
    if not pixels.is_floating_point():
        raise ValueError(f"expected {what} in 0..1, not {pixels.dtype}: divide them by 255")

"""Base class of the image and video tokenizers."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from quintet.engine.models.pretrained import Pretrained
from quintet.nn.quantisers.codebook import CodebookUsage, codebook_usage
from quintet.nn.quantisers.fsq import FSQ
from quintet.nn.quantisers.lfq import LFQ
from quintet.nn.quantisers.vq import VectorQuantiser
from quintet.nn.statistics import CommitContext, Commits


class Reconstruction(NamedTuple):
    output: Tensor
    """Images or clips, fp32, not clamped: a clamp would zero gradients out of range."""
    ids: Tensor
    """One integer per latent position."""
    quantiser_loss: Tensor
    """0-dim."""


class TokenizerModel(Pretrained, nn.Module):
    """An encoder, a quantiser and a decoder."""

    encode: Callable[[Tensor], Tensor]
    """Images or clips in 0..1 -> latents before the quantiser."""
    quantiser: FSQ | LFQ | VectorQuantiser
    decode: Callable[[Tensor], Tensor]
    """Quantised values -> images or clips, not clamped."""

    def forward(self, pixels: Tensor) -> Reconstruction:
        quantised = self.quantiser(self.encode(pixels))
        return Reconstruction(self.decode(quantised.values), quantised.ids, quantised.loss)

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


def check_divisible(height: int, width: int, factor: int, what: str) -> None:
    if height % factor or width % factor:
        raise ValueError(
            f"{what} of {height}x{width} pixels are not divisible by the downsampling factor"
            f" {factor}: resize or crop them to {height // factor * factor or factor}"
            f"x{width // factor * factor or factor}"
        )

"""An adopted autoencoder of clips."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from torch import Tensor

from quintet.shared.adopt.model import AdoptedTokenizer
from quintet.shared.tokenizer.config import TokenizerLossConfig
from quintet.shared.tokenizer.model import PixelLoss
from quintet.video.config import VideoLossConfig
from quintet.video.model import with_temporal


class AdoptedClips(AdoptedTokenizer):
    """Of clips (b, c, t, h, w); a class of images takes them frame by frame."""

    Losses: ClassVar[type[TokenizerLossConfig]] = VideoLossConfig
    chunks_apart: ClassVar[bool] = True
    """What a class keeps between chunks is its own affair."""
    what, axes, positions = "clips", 5, "t, h, w"

    def to_network(self, pixels: Tensor) -> Tensor:
        return pixels if self.takes_clips else pixels.transpose(1, 2).flatten(0, 1)

    def from_network(self, values: Tensor, frames: int) -> Tensor:
        return values if self.takes_clips else values.unflatten(0, (-1, frames)).transpose(1, 2)

    def encode_chunks(self, clips: Iterable[Tensor]) -> Iterator[Tensor]:
        """Latents of each chunk on its own, as `VideoTokenizer` has them of a whole video."""
        return map(self.encode, clips)

    def decode_chunks(self, values: Iterable[Tensor]) -> Iterator[Tensor]:
        return map(self.decode, values)

    def pixel_loss(self, output: Tensor, target: Tensor, losses: TokenizerLossConfig) -> PixelLoss:
        return with_temporal(super().pixel_loss(output, target, losses), output, target, losses)

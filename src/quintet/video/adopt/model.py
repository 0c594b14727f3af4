"""An adopted autoencoder of clips."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from quintet.shared.adopt import passes
from quintet.shared.adopt.model import SIDE, AdoptedTokenizer
from quintet.shared.tokenizer.config import TokenizerLossConfig
from quintet.shared.tokenizer.model import PixelLoss
from quintet.video.tokenizer.config import VideoLossConfig
from quintet.video.tokenizer.model import check_frames, positions_of, with_temporal

LATER = 64
"""Frames after the first of a clip that shows how much shorter latents are."""


class AdoptedClips(AdoptedTokenizer):
    """Takes clips (b, c, t, h, w); a class of images takes them frame by frame."""

    Losses: ClassVar[type[TokenizerLossConfig]] = VideoLossConfig
    chunks_apart: ClassVar[bool] = True
    """State between chunks is specific to each class."""
    what, axes, positions = "clips", 5, "t, h, w"

    def to_network(self, pixels: Tensor) -> Tensor:
        return pixels if self.takes_clips else pixels.transpose(1, 2).flatten(0, 1)

    def from_network(self, values: Tensor, frames: int) -> Tensor:
        return values if self.takes_clips else values.unflatten(0, (-1, frames)).transpose(1, 2)

    @cached_property
    def time_factor(self) -> int:
        """Frames of a position in time, but for the first; of enough frames to tell 6 from 8."""
        positions = self.latent_shape((self.config.channels, 1 + LATER, SIDE, SIDE))[1:]
        return max(1, LATER // max(1, positions[0] - 1))

    def check_length(self, length: int, first_chunk: bool) -> None:
        check_frames(length, self.time_factor, first_chunk)
        if not self.keeps(length):
            longer = range(length + self.time_factor, length + 8 * LATER, self.time_factor)
            other = next((n for n in longer if self.keeps(n)), None)
            raise ValueError(
                f"a {self.config.class_name} does not keep clips of {length} frames: give"
                f" {other or 'another number of'} frames"
            )

    def keeps(self, length: int) -> bool:
        """Whether clips of so many frames have a latent for the first and for each `time_factor`
        more, and are decoded to as many; some classes take frames in groups."""
        if not self.takes_clips:
            return True
        shape = (self.config.channels, length, SIDE, SIDE)
        latents = 1 + (length - 1) // self.time_factor
        try:
            return self.latent_shape(shape)[1] == latents and passes.output(self, shape) == shape
        except (RuntimeError, ValueError):
            return False

    def grid_of(self, size: int | tuple[int, int]) -> tuple[int, int]:
        """Height and width in latents of frames of a size in pixels."""
        return positions_of(size, self.factor)

    def encode_chunks(self, clips: Iterable[Tensor]) -> Iterator[Tensor]:
        """Latents of each chunk on its own, as `VideoTokenizer` has them of a whole video."""
        return map(self.encode, clips)

    def decode_chunks(self, values: Iterable[Tensor]) -> Iterator[Tensor]:
        return map(self.decode, values)

    def pixel_loss(self, output: Tensor, target: Tensor, losses: TokenizerLossConfig) -> PixelLoss:
        return with_temporal(super().pixel_loss(output, target, losses), output, target, losses)


Model = AdoptedClips

"""Outputs of a generator of images: what it makes of held-out captions."""

from torch import Tensor

from quintet.shared.generation.outputs import Generated
from quintet.shared.tokenizer.pixels import three_channels


class GeneratedImages(Generated):
    def shown(self, pixels: Tensor) -> Tensor:
        return super().shown(three_channels(pixels[None])[0])

"""Outputs of a generator of clips: what it makes of held-out captions."""

from torch import Tensor

from quintet.shared.generation.outputs import Generated
from quintet.video.tokenizer.outputs import rgb_frames


class GeneratedClips(Generated):
    def shown(self, pixels: Tensor) -> Tensor:
        return super().shown(rgb_frames(pixels[None])[0])

"""An adopted autoencoder of images."""

from torch import Tensor

from quintet.shared.adopt.model import AdoptedTokenizer


class AdoptedImages(AdoptedTokenizer):
    """Takes images (b, c, h, w); a class of clips takes them as single frames."""

    what, axes, positions = "images", 4, "h, w"
    compared_on = "pictures"

    def to_network(self, pixels: Tensor) -> Tensor:
        return pixels[:, :, None] if self.takes_clips else pixels

    def from_network(self, values: Tensor, frames: int) -> Tensor:
        return values[:, :, 0] if self.takes_clips else values


Model = AdoptedImages

"""Images to paint into: checks, and the latents or ids that a mask touches."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


def check_painted(image: "Tensor", mask: "Tensor | None", size: Sequence[int]) -> None:
    """Raise ValueError for an image (c, H, W), or a mask (H, W), of another size."""
    height, width = size
    if image.ndim != 3 or tuple(image.shape[1:]) != (height, width):
        raise ValueError(
            f"the image is {tuple(image.shape)}, but this model paints images of {height} x"
            f" {width} pixels: give (c, {height}, {width})"
        )
    if mask is not None and tuple(mask.shape) != (height, width):
        raise ValueError(
            f"the mask is {tuple(mask.shape)}, but the image has {height} x {width} pixels:"
            " give a mask of the same size"
        )


def touched(mask: "Tensor", factor: int) -> "Tensor":
    """(h, w): codes of which a pixel is in a mask (H, W)."""
    from torch.nn import functional as F

    return F.max_pool2d(mask[None].float(), factor)[0] > 0


def inside(mask: "Tensor", factor: int) -> "Tensor":
    """(H, W): pixels of the codes that a mask touches."""
    cells = touched(mask, factor)
    return cells.repeat_interleave(factor, 0).repeat_interleave(factor, 1)


def read_painted(
    image: Path, mask: Path | None, size: tuple[int, int], channels: int
) -> "tuple[Tensor, Tensor | None]":
    """An image (c, h, w) in 0..1 and where to paint, resized and cropped to a size."""
    import torch

    from quintet.media.pixels import read_image, resize_crop
    from quintet.shared.tokenizer.pixels import in_channels

    pixels = read_image(image, alpha=channels == 4)
    area: Any = None if mask is None else read_image(mask)
    if area is not None and pixels.shape[:2] != area.shape[:2]:
        sizes = ["{} x {}".format(*each.shape[:2]) for each in (pixels, area)]
        raise RunError(
            f"{mask} has {sizes[1]} pixels, but {image} has {sizes[0]}: give a mask of the same"
            " size"
        )
    if size != pixels.shape[:2]:
        pixels = resize_crop(pixels, size)
        area = None if area is None else resize_crop(area, size)
    values = torch.from_numpy(in_channels(pixels, channels).copy()).permute(2, 0, 1).float() / 255
    if area is None:
        return values, None
    chosen = torch.from_numpy(area.max(-1) > 127)
    if not chosen.any():
        raise RunError(f"{mask} is black in the used crop: make the area to paint white")
    return values, chosen

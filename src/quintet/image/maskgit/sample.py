"""`quintet sample` for a generator of images: from captions, or into an image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.generation.sampling import settings_of, write_samples
from quintet.shared.maskgit.sampling import MaskedFlags
from quintet.shared.sampling import Trained, check_positive, own_text, refuse_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.image.maskgit.model import MaskGit

EXAMPLE = '--text "a red star on white" --out out'


@dataclass(frozen=True, kw_only=True)
class Flags(MaskedFlags):
    """Generates images of --text, and paints into --image where --mask is white."""

    image: Path | None = None
    """Image to paint into; resized and cropped to the size of the model."""
    mask: Path | None = None
    """Image of the same size, white where to paint and black elsewhere."""
    count: int = 8
    """Images per caption."""


def example(recipe: Any, run: Path) -> list[str]:
    one = recipe.images.builtin == "figure"
    text = "a large yellow ring in the middle on purple" if one else "two red stars on white"
    captioned = [] if recipe.model.text == "none" else ["--text", own_text(recipe, run, text)]
    return [*captioned, "--count", "4", "--out", "out"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write CAPTION-000.png and so on, and a sheet of all."""
    from quintet.image.maskgit.task import PictureSheet
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.pixels import to_bytes

    check_positive(flags, "count")
    refuse_inputs(inputs, trained, "--text, or --image and --mask")
    model: MaskGit = trained.model(flags.device)
    draw = _painting(model, flags)
    write = lambda path, image: write_png(path, to_bytes(image))
    settings = settings_of(trained.path, flags)
    paths, sheet = write_samples(model, out, flags, settings, draw, write, ".png")
    return [*paths, *PictureSheet(**sheet).write(out)]


def _painting(model: "MaskGit", flags: Flags) -> "Callable[..., Tensor]":
    """Takes texts, or None, and the keywords of `MaskGit.generate`; returns images."""
    import torch

    painted = _painted(model, flags)
    if painted is None:
        return model.generate
    image, mask = (each.to(model.weight.device) for each in painted)
    factor = model.tokenizer.factor
    patches = model.patches(mask).repeat_interleave(factor, 0).repeat_interleave(factor, 1)

    def draw(texts: Any, **settings: Any) -> "Tensor":
        return torch.where(
            patches, model.generate(texts, image=image, mask=mask, **settings), image
        )

    return draw


def _painted(model: "MaskGit", flags: Flags) -> "tuple[Tensor, Tensor] | None":
    """The image (c, h, w) in 0..1 to paint into, and where."""
    import torch

    from quintet.media.pixels import read_image, resize_crop
    from quintet.shared.tokenizer.pixels import in_channels

    if flags.image is None and flags.mask is None:
        return None
    if flags.image is None or flags.mask is None:
        raise RunError("in-painting takes --image and --mask; give both")
    channels = model.tokenizer.config.channels
    image, mask = read_image(flags.image, alpha=channels == 4), read_image(flags.mask)
    if image.shape[:2] != mask.shape[:2]:
        sizes = ["{} x {}".format(*each.shape[:2]) for each in (image, mask)]
        raise RunError(
            f"{flags.mask} has {sizes[1]} pixels, but {flags.image} has {sizes[0]}: give a mask of"
            " the same size"
        )
    if model.image_size != image.shape[:2]:
        image, mask = (resize_crop(each, model.image_size) for each in (image, mask))
    pixels = torch.from_numpy(in_channels(image, channels).copy()).permute(2, 0, 1).float() / 255
    inside = torch.from_numpy(mask.max(-1) > 127)
    if not inside.any():
        raise RunError(f"{flags.mask} is black in the used crop: make the area to paint white")
    return pixels, inside

"""`quintet sample` for a generator of images: from captions, or into an image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.generation.sampling import settings_of, together, write_samples
from quintet.shared.maskgit.sampling import MaskedFlags
from quintet.shared.sampling import Trained, check_positive, own_text, refuse_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.image.maskgit.model import MaskGit

__all__ = ["EXAMPLE", "Flags", "example", "sample", "together"]
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
    from quintet.image.sheets import PictureSheet
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

    from quintet.image.painting import inside

    painted = _painted(model, flags)
    if painted is None:
        return model.generate
    image, mask = (each.to(model.weight.device) for each in painted)
    patches = inside(mask, model.tokenizer.factor)

    def draw(texts: Any, **settings: Any) -> "Tensor":
        return torch.where(
            patches, model.generate(texts, image=image, mask=mask, **settings), image
        )

    return draw


def _painted(model: "MaskGit", flags: Flags) -> "tuple[Tensor, Tensor] | None":
    """The image (c, h, w) in 0..1 to paint into, and where."""
    from quintet.image.painting import read_painted

    if flags.image is None and flags.mask is None:
        return None
    if flags.image is None or flags.mask is None:
        raise RunError("in-painting takes --image and --mask; give both")
    channels = model.tokenizer.config.channels
    image, mask = read_painted(flags.image, flags.mask, model.image_size, channels)
    assert mask is not None
    return image, mask

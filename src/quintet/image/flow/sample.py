"""`quintet sample` for a flow generator of images: from captions, like an image, into one, or
enlarged from a small one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.flow.sampling import FlowFlags
from quintet.shared.generation.sampling import (
    config_of,
    reads_captions,
    settings_of,
    together,
    write_samples,
)
from quintet.shared.sampling import Trained, check_positive, check_size, own_text, refuse_inputs

if TYPE_CHECKING:
    from quintet.image.flow.model import ImageFlow

__all__ = ["EXAMPLE", "Flags", "example", "sample", "together"]
EXAMPLE = '--text "a red star on white" --out out'


@dataclass(frozen=True, kw_only=True)
class Flags(FlowFlags):
    """Makes images of --text; changes an image (--like), paints (--mask) or enlarges (--small)."""

    size: tuple[int, int] | None = None
    """Height and width; default: those of training."""
    like: Path | None = None
    """Image to begin from; cropped to the size."""
    strength: float = 0.6
    """How far --like is changed: 0.3 a little, 0.9 nearly all."""
    image: Path | None = None
    """Image to paint into; cropped to the size."""
    mask: Path | None = None
    """Image of the same size, white where to paint."""
    small: Path | None = None
    """Image to enlarge, by a model with model.enlarge."""
    count: int | None = None
    """Images per caption; unset: 8, of --small 1."""


def example(recipe: Any, run: Path) -> list[str]:
    if config_of(run)["enlarge"]:
        small = sorted(run.glob("exhibits/*/small.png"))[-1:]
        return ["--small", str(small[0]), "--out", "out"] if small else []
    one = recipe.images.builtin == "figure"
    text = "a large yellow ring in the middle on purple" if one else "two red stars on white"
    captioned = ["--text", own_text(recipe, run, text)] if reads_captions(run) else []
    return [*captioned, "--count", "4", "--out", "out"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write CAPTION-000.png and so on, and a sheet of all."""
    from functools import partial

    from quintet.image.flow.enlarging import TITLES, stretched
    from quintet.image.sheets import PictureSheet
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.pixels import to_bytes

    if flags.count is None:
        flags = replace(flags, count=8 if flags.small is None else 1)
    check_positive(flags, "count")
    refuse_inputs(inputs, trained, "--text, --small, --like, or --image and --mask")
    model: ImageFlow = trained.model(flags.device)
    check_size(flags.size, model.tokenizer.factor)
    begun = _begun(model, flags)
    draw = partial(model.generate, size=flags.size, **begun)
    settings = settings_of(trained.path, flags)
    write = lambda path, image: write_png(path, to_bytes(image))
    paths, sheet = write_samples(model, out, flags, settings, draw, write, ".png")
    if "small" in begun:
        small, factor = begun["small"], model.config.enlarge
        cells = small.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
        first = [cells, stretched(small[None], factor)[0]]
        sheet["rows"] = [[*first, *row] for row in sheet["rows"]]
        sheet["titles"] = [*TITLES[:2], *sheet["titles"]]
    return [*paths, *PictureSheet(**sheet).write(out)]


def _begun(model: "ImageFlow", flags: Flags) -> dict[str, Any]:
    """Keywords of `ImageFlow.generate` for an image to begin from, to paint into or to enlarge."""
    import torch

    from quintet.image.painting import read_painted
    from quintet.media.pixels import read_image
    from quintet.shared.tokenizer.pixels import in_channels

    size, channels = flags.size or model.image_size, model.tokenizer.config.channels
    if flags.small is not None:
        if (flags.size, flags.like, flags.image, flags.mask) != (None,) * 4:
            raise RunError("--small is enlarged alone: drop --size, --like, --image and --mask")
        pixels = in_channels(read_image(flags.small, alpha=channels == 4), channels)
        small = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
        try:
            model.checked_small(small)
        except ValueError as error:
            raise RunError(f"{flags.small}: {error}") from None
        return {"small": small}
    if (flags.image is None) != (flags.mask is None):
        raise RunError("in-painting takes --image and --mask; give both")
    if flags.like is not None and flags.image is not None:
        raise RunError("--like changes all of an image, and --image a part; give one of them")
    if flags.like is not None:
        if not 0 < flags.strength <= 1:
            raise RunError(f"--strength is {flags.strength}; it must be above 0 and at most 1")
        image, _ = read_painted(flags.like, None, size, channels)
        return {"image": image, "strength": flags.strength}
    if flags.image is None:
        return {}
    image, mask = read_painted(flags.image, flags.mask, size, channels)
    return {"image": image, "mask": mask}

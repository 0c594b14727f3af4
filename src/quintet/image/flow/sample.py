"""`quintet sample` for a flow generator of images: from captions, like an image, or into one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.flow.sampling import FlowFlags
from quintet.shared.generation.sampling import reads_captions, settings_of, together, write_samples
from quintet.shared.sampling import Trained, check_positive, check_size, own_text, refuse_inputs

if TYPE_CHECKING:
    from quintet.image.flow.model import ImageFlow

__all__ = ["EXAMPLE", "Flags", "example", "sample", "together"]
EXAMPLE = '--text "a red star on white" --out out'


@dataclass(frozen=True, kw_only=True)
class Flags(FlowFlags):
    """Generates images of --text, changes those of --like, and paints into --image where --mask is
    white."""

    size: tuple[int, int] | None = None
    """Height and width; default: those of training."""
    like: Path | None = None
    """Image to begin from; resized and cropped to the size."""
    strength: float = 0.6
    """How far --like is changed: a little (0.3) to nearly all of it (0.9)."""
    image: Path | None = None
    """Image to paint into; resized and cropped to the size."""
    mask: Path | None = None
    """Image of the same size, white where to paint and black elsewhere."""
    count: int = 8
    """Images per caption."""


def example(recipe: Any, run: Path) -> list[str]:
    one = recipe.images.builtin == "figure"
    text = "a large yellow ring in the middle on purple" if one else "two red stars on white"
    captioned = ["--text", own_text(recipe, run, text)] if reads_captions(run) else []
    return [*captioned, "--count", "4", "--out", "out"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write CAPTION-000.png and so on, and a sheet of all."""
    from functools import partial

    from quintet.image.sheets import PictureSheet
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.pixels import to_bytes

    check_positive(flags, "count")
    refuse_inputs(inputs, trained, "--text, --like, or --image and --mask")
    model: ImageFlow = trained.model(flags.device)
    check_size(flags.size, model.tokenizer.factor)
    draw = partial(model.generate, size=flags.size, **_begun(model, flags))
    settings = settings_of(trained.path, flags)
    write = lambda path, image: write_png(path, to_bytes(image))
    paths, sheet = write_samples(model, out, flags, settings, draw, write, ".png")
    return [*paths, *PictureSheet(**sheet).write(out)]


def _begun(model: "ImageFlow", flags: Flags) -> dict[str, Any]:
    """Keywords of `ImageFlow.generate` for an image to begin from, or to paint into."""
    from quintet.image.painting import read_painted

    size, channels = flags.size or model.image_size, model.tokenizer.config.channels
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

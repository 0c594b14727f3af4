"""`quintet sample` of a CLIP: images ranked by texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.image.vqgan.sample import validation_images
from quintet.shared.ranking import embed_texts, formatted, rank, written
from quintet.shared.sampling import (
    Device,
    Trained,
    check_positive,
    each_input,
    find_inputs,
    has_validation,
    own_text,
    with_input,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.shared.adopt.clip import AdoptedClip

TOP = 5
"""Images to print for each text; ranking.json has all."""


EXAMPLE = 'photos --text "a red star on white" --out found'


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Ranks images, or folders of them, by --text; without any, validation images."""

    text: tuple[str, ...] = ()
    """Texts to rank images by."""
    count: int = 8
    """Without inputs: number of validation images."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.media.pixels import SUFFIXES

    words = ["--text", own_text(recipe, run, "two red stars on white"), "--out", "found"]
    return words if has_validation(run) else with_input(recipe, run, SUFFIXES, *words)


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path | str]:
    """Write ranking.json; returns lines with the best images of each text."""
    import torch

    from quintet.media.pixels import SUFFIXES

    check_positive(flags, "count")
    if not flags.text:
        raise RunError('give texts to rank images by: --text "a slow river"')
    model: AdoptedClip = trained.model(flags.device)
    out.mkdir(parents=True, exist_ok=True)
    files = find_inputs(inputs, (SUFFIXES,), "images")
    files = files or validation_images(trained, out, flags.count)
    pairs = each_input(files, lambda item: [(str(item.path), embedded(model, item.path))])
    names, embeds = [name for name, _ in pairs], torch.stack([embed for _, embed in pairs])
    ranking = rank(list(flags.text), embed_texts(model, flags.text), names, embeds)
    return [*formatted(ranking, TOP), written(ranking, out)]


def embedded(model: "AdoptedClip", path: Path) -> "Tensor":
    import torch

    from quintet.media.pixels import read_crop

    side = model.config.image_size
    pixels = torch.from_numpy(read_crop(path, (side, side))).permute(2, 0, 1)[None]
    return model.embed_image(pixels.to(model.device).float() / 255)[0]

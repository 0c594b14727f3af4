"""`quintet sample` of a CLIP: images ranked by texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.ranking import embed_texts, formatted, rank, written
from quintet.shared.sampling import Input, each_input

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.image.clip.model import AdoptedClip

TOP = 5
"""Images to print for each text; ranking.json has all."""


def search(model: "AdoptedClip", files: Sequence[Input], out: Path, flags: Any) -> list[Path | str]:
    """Write ranking.json; returns lines with the best images of each text."""
    import torch

    if flags.image or flags.mask or not flags.text:
        raise RunError(
            'this model ranks images by texts: give --text "a slow river", and images or a folder'
        )
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

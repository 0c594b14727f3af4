"""Enlarging: images of which a small one is the condition.

    training:  image -> small -> as large as before (bicubic) -> tokenizer -> latents beside noise
    sampling:  small image -> enlarged (bicubic) -> tokenizer -> the same

These latents are always given. Guidance is by the caption alone: away from no small image it
would exaggerate contrasts. Grids larger than that of training are solved in overlapping tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.keys import Key
from quintet.image.sheets import PictureSheet
from quintet.media.pixels import write_png
from quintet.nn.attention import Context
from quintet.nn.precision import full_precision
from quintet.shared.flow.data import LatentData
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver, Start
from quintet.shared.generation.data import CaptionedPixels, in_floats
from quintet.shared.sampling import with_progress
from quintet.shared.tokenizer.pixels import to_bytes

OVERLAP = 4
"""Neighbouring tiles have at least a part of 1 / this in common."""
TILES = 64
"""Tiles that are solved together."""


def shrunk(images: Tensor, factor: int) -> Tensor:
    """(b, c, h / factor, w / factor), without aliasing, as files of 8 bits hold them."""
    size = [side // factor for side in images.shape[-2:]]
    small = F.interpolate(full_precision(images), size, mode="bicubic", antialias=True)
    return (small.clamp(0, 1) * 255).round() / 255


def stretched(small: Tensor, factor: int) -> Tensor:
    """(b, c, h factor, w factor): bicubic."""
    return F.interpolate(small, scale_factor=factor, mode="bicubic").clamp(0, 1)


def padded(images: Tensor, multiple: int) -> Tensor:
    """With the last rows and columns repeated, so that sides are multiples of a number."""
    height, width = images.shape[-2:]
    return F.pad(images, (0, -width % multiple, 0, -height % multiple), mode="replicate")


class PairedLatents(LatentData):
    """Latents of images and, in as many channels more, of the same without what enlarging adds."""

    def __init__(self, source: CaptionedPixels, variants: int, weights: str, factor: int) -> None:
        self.factor = factor
        super().__init__(source, variants, f"{weights}/enlarge-{factor}")

    def row_shape(self, network: Any) -> tuple[int, ...]:
        return (2 * network.quantiser.channels,)

    def encode(self, network: Any, batch: Any, device: torch.device) -> list[Tensor]:
        images = in_floats(batch[self.field].to(device), network)
        coarse = stretched(shrunk(images, self.factor), self.factor)
        first = super().encode(network, {self.field: images}, device)
        second = super().encode(network, {self.field: coarse}, device)
        return [torch.cat(pair, 1) for pair in zip(first, second)]

    def codes_of(self, index: int, number: int = 0) -> Tensor:
        return super().codes_of(index, number).chunk(2, 1)[0]

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """Also `beside`, the latents of the condition; and in evaluations `original`, the image."""
        both = super().codes_of(index, self.variant(index, key))
        item = {**super().keyed(index, key), "beside": both.chunk(2, 1)[1]}
        return item if key else {**item, "original": self.source.keyed(index, None)[self.field]}


# -- tiles ----------------------------------------------------------------------------------------


def places(side: int, window: int) -> list[int]:
    """Where windows begin that cover a side, overlapping and evenly spaced."""
    count = ceil(max(0, side - window) / max(1, window - window // OVERLAP)) + 1
    return [round(number * (side - window) / max(1, count - 1)) for number in range(count)]


def tiled(model: FlowGenerator, start: Start, context: Context | None, solver: Solver) -> Tensor:
    """`model.solved` of latents (b, c, h, w), in windows no larger than the grid of training; where
    these overlap, the mean, weighted towards the middle of each."""
    sides = tuple(start.latents.shape[2:])
    window = [min(pair) for pair in zip(sides, model.config.grid)]
    corners = [(y, x) for y in places(sides[0], window[0]) for x in places(sides[1], window[1])]
    if len(corners) == 1:
        return model.solved(start, context, solver)
    ramps = [torch.arange(1, n + 1, device=start.latents.device).clamp_max(n // 2) for n in window]
    rows, columns = (torch.minimum(ramp, ramp.flip(0)) for ramp in ramps)
    weight = rows[:, None] * columns
    total, sums = torch.zeros(sides, device=weight.device), torch.zeros_like(start.latents)
    areas = [(..., slice(y, y + window[0]), slice(x, x + window[1])) for y, x in corners]
    groups = [areas[first : first + TILES] for first in range(0, len(areas), TILES)]
    for group in with_progress(groups, what="enlarging"):
        beside = None if start.beside is None else cut(start.beside, group)
        tiles = Start(cut(start.latents, group), cut(start.known, group), start.time, beside)
        repeated = context and Context(*(torch.cat([each] * len(group)) for each in context))
        solved = model.solved(tiles, repeated, solver)
        for area, latents in zip(group, solved.chunk(len(group))):
            sums[area] += weight * latents
            total[area[1:]] += weight
    return sums / total


def cut(values: Tensor, areas: Sequence[tuple[Any, ...]]) -> Tensor:
    return torch.cat([values[area] for area in areas])


# -- exhibits -------------------------------------------------------------------------------------

TITLES = ["small", "bicubic", "enlarged", "original"]


@dataclass
class EnlargedSheet(PictureSheet):
    """Rows as `TITLES` says; also the first small image as a file, to enlarge again."""

    small: Tensor
    """(c, h, w) in 0..1."""

    def write(self, folder: Path) -> list[Path]:
        write_png(folder / "small.png", to_bytes(self.small))
        return [*super().write(folder), folder / "small.png"]

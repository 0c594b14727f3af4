"""Clips for a person to look at: a strip of frames, a GIF, and an mp4 where PyAV is installed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quintet.media.clip_writing import write_gif, write_mp4
from quintet.media.pixels import Pixels, grid, write_png

RATE = 8
"""Frames per second, slow enough to see what is wrong."""
STRIP = 5
"""Frames of each clip in the strip."""


def to_bytes(clip: Tensor) -> Pixels:
    """(3, t, h, w) in 0..1 to (t, h, w, 3) bytes."""
    scaled = (clip.detach().float() * 255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(1, 2, 3, 0).cpu().numpy()


def enlarged(frames: Pixels, side: int = 128) -> Pixels:
    """Small frames at a whole multiple of their size, for the eye."""
    factor = max(1, round(side / max(frames.shape[1:3])))
    return frames.repeat(factor, axis=1).repeat(factor, axis=2)


@dataclass
class ClipSheet:
    """Original, reconstruction and their difference, a row for each clip."""

    name: str
    real: Tensor
    made: Tensor

    def write(self, folder: Path) -> list[Path]:
        strip, moving = folder / f"{self.name}.png", folder / f"{self.name}.gif"
        triples = list(self._triples())
        write_png(strip, self._strip(triples))
        titles = ["original", "reconstruction", "difference"]
        count = self.real.shape[2]
        frames = np.stack(
            [grid([[side[t] for side in s] for s in triples], titles) for t in range(count)]
        )
        write_gif(moving, frames, RATE)
        written = [strip, moving]
        with suppress(ImportError):  # the GIF shows the same
            write_mp4(folder / f"{self.name}.mp4", frames, RATE)
            written.append(folder / f"{self.name}.mp4")
        return written

    def _triples(self) -> Iterator[tuple[Pixels, Pixels, Pixels]]:
        for real, made in zip(self.real, self.made):
            difference = (real - made).abs().clamp(0, 1)
            first, second, third = (enlarged(to_bytes(c)) for c in (real, made, difference))
            yield first, second, third

    @staticmethod
    def _strip(triples: list[tuple[Pixels, Pixels, Pixels]]) -> Pixels:
        count = len(triples[0][0])
        at = np.unique(np.linspace(0, count - 1, STRIP).round().astype(int))
        rows = [[side[t] for t in at] for triple in triples for side in triple[:2]]
        return grid(rows, [f"frame {t}" for t in at])

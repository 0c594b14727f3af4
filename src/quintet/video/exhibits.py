"""Exhibits of clips: a strip of frames, a GIF, and an mp4 if PyAV is installed."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from quintet.media.clips.writer import write_gif, write_mp4
from quintet.media.pixels import Pixels, write_png
from quintet.media.sheets import contact_sheet, grid
from quintet.shared.tokenizer.pixels import COMPARED, compared, displayed, enlarged, to_bytes

FPS = 8
"""Frames per second, slow enough to see artefacts."""
STRIP = 5
"""Frames per clip in the strip."""


@dataclass
class ClipSheet:
    """Original, reconstruction and difference, one row per clip."""

    name: str
    real: Tensor
    reconstruction: Tensor

    def write(self, folder: Path) -> list[Path]:
        path, count = folder / f"{self.name}.png", self.real.shape[2]
        rows = compared(self.real, self.reconstruction)
        frames = np.unique(np.linspace(0, count - 1, STRIP).round().astype(int))
        strips = [[clip[t] for t in frames] for row in rows for clip in row[:2]]
        write_png(path, grid(strips, [f"frame {t}" for t in frames]))
        moving = [grid([[clip[t] for clip in row] for row in rows], COMPARED) for t in range(count)]
        return [path, *write_moving(folder, self.name, np.stack(moving))]


@dataclass
class CaptionedClips:
    """Clips (c, t, h, w) in 0..1, one row for each caption."""

    name: str
    rows: Sequence[Sequence[Tensor]]
    titles: Sequence[str]
    texts: Sequence[str]

    def write(self, folder: Path) -> list[Path]:
        rows = [[enlarged(displayed(to_bytes(clip))) for clip in row] for row in self.rows]
        sheets = [
            contact_sheet([[clip[t] for clip in row] for row in rows], self.titles, self.texts)
            for t in range(len(rows[0][0]))
        ]
        strip = folder / f"{self.name}.png"
        pairs = [[row[-1][0], row[-1][-1]] for row in rows]
        write_png(strip, contact_sheet(pairs, ["first frame", "last frame"], self.texts))
        return [strip, *write_moving(folder, self.name, np.stack(sheets))]


def write_moving(folder: Path, name: str, frames: Pixels) -> list[Path]:
    """A GIF, and an mp4 where PyAV is installed."""
    gif, mp4 = folder / f"{name}.gif", folder / f"{name}.mp4"
    write_gif(gif, frames, FPS)
    with suppress(ImportError):  # the GIF shows the same
        write_mp4(mp4, frames, FPS)
        return [gif, mp4]
    return [gif]

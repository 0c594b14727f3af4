"""Exhibits of clips: a strip of frames, a GIF, and an mp4 if PyAV is installed."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from quintet.media.clips.writer import write_gif, write_mp4
from quintet.media.pixels import Pixels, write_png
from quintet.media.sheets import contact_sheet, grid
from quintet.shared.tokenizer.pixels import displayed, enlarged, to_bytes

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
        strip = folder / f"{self.name}.png"
        triples = list(self._triples())
        write_png(strip, self._strip(triples))
        titles = ["original", "reconstruction", "difference"]
        count = self.real.shape[2]
        frames = np.stack(
            [
                grid([[clip[t] for clip in triple] for triple in triples], titles)
                for t in range(count)
            ]
        )
        return [strip, *write_moving(folder, self.name, frames)]

    def _triples(self) -> Iterator[tuple[Pixels, Pixels, Pixels]]:
        for real, fake in zip(self.real, self.reconstruction):
            difference = (real - fake).abs().clamp(0, 1)
            clips = (displayed(to_bytes(clip)) for clip in (real, fake, difference))
            first, second, third = map(enlarged, clips)
            yield first, second, third

    @staticmethod
    def _strip(triples: list[tuple[Pixels, Pixels, Pixels]]) -> Pixels:
        count = len(triples[0][0])
        frames = np.unique(np.linspace(0, count - 1, STRIP).round().astype(int))
        rows = [[clip[t] for t in frames] for triple in triples for clip in triple[:2]]
        return grid(rows, [f"frame {t}" for t in frames])


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
        ends = [row[-1][t] for row in rows for t in (0, -1)]
        pairs = [ends[index : index + 2] for index in range(0, len(ends), 2)]
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

"""Exhibits of clips: a strip of frames, a GIF, and an mp4 if PyAV is installed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from quintet.media.clips.writer import write_gif, write_mp4
from quintet.media.pixels import Pixels, grid, write_png
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
        strip, gif = folder / f"{self.name}.png", folder / f"{self.name}.gif"
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
        write_gif(gif, frames, FPS)
        written = [strip, gif]
        with suppress(ImportError):  # the GIF shows the same
            write_mp4(folder / f"{self.name}.mp4", frames, FPS)
            written.append(folder / f"{self.name}.mp4")
        return written

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

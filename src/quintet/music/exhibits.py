"""Exhibits of the music room: a similarity matrix, and the best captions of each clip."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quintet.media.audio import write_wav
from quintet.media.errors import printable
from quintet.media.pixels import write_png

BLUE, WHITE, RED = (33, 102, 172), (247, 247, 247), (178, 24, 43)
"""Colours of similarities -1, 0 and 1."""


def colour_map(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """(h, w) in [-1, 1] -> RGB (h, w, 3), with a diverging colour map."""
    share = np.abs(values).clip(0, 1)[..., None]
    ends = np.where(values[..., None] < 0, np.array(BLUE), np.array(RED))
    return np.rint(np.array(WHITE) * (1 - share) + ends * share).astype(np.uint8)


@dataclass
class SimilarityMatrix:
    """One row per clip and one column per caption; matching pairs are on the diagonal."""

    name: str
    similarity: Tensor

    def write(self, folder: Path) -> list[Path]:
        cells = colour_map(self.similarity.float().cpu().numpy())
        side = max(4, 512 // max(cells.shape[:2]))
        path = folder / f"{self.name}.png"
        write_png(path, cells.repeat(side, axis=0).repeat(side, axis=1))
        return [path]


@dataclass
class BestCaptions:
    """Audio files, and a text file with the most similar captions of each."""

    name: str
    wavs: Sequence[Tensor]
    rate: int
    captions: Sequence[str]
    """Caption i belongs to clip i; there may be more captions than clips."""
    similarity: Tensor
    """(clips, captions)."""
    top: int = 3

    def write(self, folder: Path) -> list[Path]:
        files: list[Path] = []
        lines: list[str] = []
        for number, wav in enumerate(self.wavs):
            path = folder / f"{self.name}-{number}.wav"
            write_wav(path, wav.float().cpu().numpy(), self.rate)
            files.append(path)
            lines += [path.name, f"  its own:  {printable(self.captions[number])}"]
            lines += [*self._best(number), ""]
        page = folder / f"{self.name}.txt"
        page.write_text("\n".join(lines), encoding="utf-8")
        return [*files, page]

    def _best(self, number: int) -> list[str]:
        values, order = self.similarity[number].float().sort(descending=True, stable=True)
        best = zip(range(1, self.top + 1), values.tolist(), order.tolist())
        return [f"  {n}. {v:+.3f}  {printable(self.captions[i])}" for n, v, i in best]

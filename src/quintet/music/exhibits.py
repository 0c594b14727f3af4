"""Sounds and captions for a person: how alike they are found, and the best captions of a sound."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quintet.media.audio import write_wav
from quintet.media.errors import printable
from quintet.media.pixels import write_png

COLD, WHITE, WARM = (33, 102, 172), (247, 247, 247), (178, 24, 43)
"""Of similarities -1, 0 and 1."""


def coloured(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """(h, w) between -1 and 1 -> (h, w, 3)."""
    share = np.abs(values).clip(0, 1)[..., None]
    ends = np.where(values[..., None] < 0, np.array(COLD), np.array(WARM))
    return np.rint(np.array(WHITE) * (1 - share) + ends * share).astype(np.uint8)


@dataclass
class SimilarityPicture:
    """A row for each sound and a column for each caption; those of a pair are on the diagonal."""

    name: str
    similarity: Tensor

    def write(self, folder: Path) -> list[Path]:
        cells = coloured(self.similarity.float().cpu().numpy())
        side = max(4, 512 // max(cells.shape[:2]))
        path = folder / f"{self.name}.png"
        write_png(path, cells.repeat(side, axis=0).repeat(side, axis=1))
        return [path]


@dataclass
class BestCaptions:
    """Each sound as a file, and a page that says which captions are found nearest to it."""

    name: str
    wavs: Sequence[Tensor]
    rate: int
    captions: Sequence[str]
    """The i-th belongs to the i-th sound; there may be more of them."""
    similarity: Tensor
    """(sounds, captions)."""
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
        values, places = self.similarity[number].float().sort(descending=True, stable=True)
        best = zip(range(1, self.top + 1), values.tolist(), places.tolist())
        return [f"  {n}. {v:+.3f}  {printable(self.captions[i])}" for n, v, i in best]

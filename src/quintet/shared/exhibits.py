"""Exhibits of sounds (files and log-mels) and of joint embeddings (similarities, captions)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quintet.media.audio import write_wav
from quintet.media.errors import printable
from quintet.media.pixels import write_png

QUIET, MIDDLE, LOUD = (11, 9, 36), (183, 55, 121), (252, 253, 191)
GAP = 4
SCALE = 2
"""Pixels per mel bin."""


def coloured(log_mels: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """(m, t) -> (SCALE m, SCALE t, 3), low frequencies at the bottom; a range of 11 in log."""
    top = log_mels.max() if log_mels.size else 0.0
    share = ((log_mels - top) / 11 + 1).clip(0, 1)[::-1, :, None]
    low = np.array(QUIET) + (np.array(MIDDLE) - QUIET) * (2 * share)
    high = np.array(MIDDLE) + (np.array(LOUD) - MIDDLE) * (2 * share - 1)
    cells = np.rint(np.where(share < 0.5, low, high)).astype(np.uint8)
    return cells.repeat(SCALE, axis=0).repeat(SCALE, axis=1)


def stacked(pictures: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.uint8]:
    """Log-mels (m, t), one below the other on the same scale of time, on white."""
    cells = [coloured(picture) for picture in pictures]
    height, width = cells[0].shape[0] + GAP, max(cell.shape[1] for cell in cells)
    page = np.full((len(cells) * height - GAP, width, 3), 255, np.uint8)
    for row, cell in enumerate(cells):
        page[row * height :][: cell.shape[0], : cell.shape[1]] = cell
    return page


@dataclass
class Sounds:
    """Sounds as files, one picture of all, and a text file about them."""

    name: str
    sounds: Mapping[str, Tensor]
    """(n,) by title."""
    log_mels: Sequence[Tensor]
    """(m, t), one per sound."""
    rate: int
    text: str

    def write(self, folder: Path) -> list[Path]:
        paths: list[Path] = []
        lines = [printable(self.text), " | ".join(self.sounds)]
        for title, sound in self.sounds.items():
            paths.append(folder / f"{self.name}-{title}.wav")
            clipping = write_wav(paths[-1], sound.float().cpu().numpy(), self.rate)
            if clipping is not None:
                lines.append(f"{title}: {clipping}")
        picture, page = folder / f"{self.name}.png", folder / f"{self.name}.txt"
        write_png(picture, stacked([mel.float().cpu().numpy() for mel in self.log_mels]))
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [*paths, picture, page]


BLUE, WHITE, RED = (33, 102, 172), (247, 247, 247), (178, 24, 43)
"""Colours of similarities -1, 0 and 1."""


def colour_map(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """(h, w) in [-1, 1] -> RGB (h, w, 3), with a diverging colour map."""
    share = np.abs(values).clip(0, 1)[..., None]
    ends = np.where(values[..., None] < 0, np.array(BLUE), np.array(RED))
    return np.rint(np.array(WHITE) * (1 - share) + ends * share).astype(np.uint8)


@dataclass
class SimilarityMatrix:
    """One row per sample and one column per caption; matching pairs are on the diagonal."""

    name: str
    similarity: Tensor

    def write(self, folder: Path) -> list[Path]:
        cells = colour_map(self.similarity.float().cpu().numpy())
        side = max(4, 512 // max(cells.shape[:2]))
        path = folder / f"{self.name}.png"
        write_png(path, cells.repeat(side, axis=0).repeat(side, axis=1))
        return [path]


@dataclass
class Lines:
    """A text file."""

    name: str
    lines: Sequence[str]

    def write(self, folder: Path) -> list[Path]:
        path = folder / f"{self.name}.txt"
        path.write_text("\n".join(self.lines), encoding="utf-8")
        return [path]


def best_captions(similarity: Tensor, captions: Sequence[str], top: int) -> list[str]:
    """The most similar captions of a sample, with their similarities (captions,)."""
    values, order = similarity.float().sort(descending=True, stable=True)
    best = zip(range(1, top + 1), values.tolist(), order.tolist())
    return [f"{n}. {v:+.3f}  {printable(captions[i])}" for n, v, i in best]

"""Sheets of generated images, with their captions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quintet.media.pixels import write_png
from quintet.media.sheets import contact_sheet
from quintet.shared.tokenizer.pixels import displayed, enlarged, to_bytes


@dataclass
class PictureSheet:
    """Images (c, h, w) in 0..1, one row for each caption."""

    name: str
    rows: Sequence[Sequence[Tensor]]
    titles: Sequence[str]
    texts: Sequence[str]

    def write(self, folder: Path) -> list[Path]:
        pictures = [[enlarged(displayed(to_bytes(image))) for image in row] for row in self.rows]
        path = folder / f"{self.name}.png"
        write_png(path, contact_sheet(pictures, self.titles, self.texts))
        return [path]

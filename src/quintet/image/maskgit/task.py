"""Training of the image generator (shared/maskgit/task.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quintet.image import data
from quintet.image.maskgit.config import MaskGitRecipe
from quintet.image.maskgit.model import MaskGit
from quintet.media.pixels import write_png
from quintet.media.sheets import contact_sheet
from quintet.shared.maskgit.task import MaskedTask
from quintet.shared.scenes import agreement as judge
from quintet.shared.tokenizer.pixels import displayed, enlarged, to_bytes


class MaskGitTask(MaskedTask):
    field, settings, room = "image", "images", data
    Model = MaskGit
    recipe: MaskGitRecipe

    def grid(self) -> tuple[int, ...]:
        return MaskGit.grid_of(self.tokenizer, self.recipe.images.size)

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return judge.agrees(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> "PictureSheet":
        return PictureSheet("generated", rows, titles, texts)


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


build = MaskGitTask

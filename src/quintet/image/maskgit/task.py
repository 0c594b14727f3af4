"""Training of the image generator (shared/maskgit/task.py)."""

from collections.abc import Sequence

from torch import Tensor

from quintet.image import data
from quintet.image.maskgit.model import MaskGit
from quintet.image.sheets import PictureSheet
from quintet.shared.maskgit.task import MaskedTask
from quintet.shared.scenes import agreement as judge
from quintet.shared.tokenizer.pixels import displayed, to_bytes


class MaskGitTask(MaskedTask):
    field, settings, room = "image", "images", data
    Model = MaskGit

    def grid(self) -> tuple[int, ...]:
        return MaskGit.grid_of(self.tokenizer, self.recipe.images.size)

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return judge.agrees(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> PictureSheet:
        return PictureSheet("generated", rows, titles, texts)


build = MaskGitTask
to_encode = MaskGitTask.to_encode

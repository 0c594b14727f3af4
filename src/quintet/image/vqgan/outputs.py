"""Outputs of an image tokenizer: reconstructions."""

from collections.abc import Sequence
from typing import Any

from quintet.engine.task import Batch
from quintet.image.vqgan.task import VQGanTask
from quintet.shared.outputs import Group, Outputs, cropped, eight_bits
from quintet.shared.tokenizer.pixels import bicubic, three_channels


class Reconstructions(Outputs):
    task: VQGanTask

    def preparation(self) -> dict[str, str]:
        return cropped(self.task.recipe.images.size)

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        real = self.task.real(batch)
        sets = {
            "originals": real,
            "outputs": self.nets["vae"](real).output,
            # As many pixels as the tokenizer has ids.
            "bicubic": bicubic(real, self.task.tokenizer.factor),
        }
        pictures = {name: [*eight_bits(three_channels(x))] for name, x in sets.items()}
        return Group(pictures.pop("originals"), pictures.pop("outputs"), pictures)


outputs = Reconstructions

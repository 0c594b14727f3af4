"""Candidates of an image tokenizer: reconstructions."""

from collections.abc import Sequence
from typing import Any

from quintet.engine.task import Batch
from quintet.image.task import VQGanTask
from quintet.shared.candidates import Candidates, Group, cropped, eight_bits
from quintet.shared.tokenizer.pixels import bicubic, three_channels


class Reconstructions(Candidates):
    task: VQGanTask

    def preparation(self) -> dict[str, str]:
        return cropped(self.task.recipe.images.size)

    def make(self, items: Sequence[Any], batch: Batch) -> Group:
        real = self.task.real(batch)
        sets = {
            "originals": real,
            "candidates": self.nets["vae"](real).output,
            # As many pixels as the tokenizer has ids.
            "bicubic": bicubic(real, self.task.tokenizer.factor),
        }
        pictures = {name: [*eight_bits(three_channels(x))] for name, x in sets.items()}
        return Group(pictures.pop("originals"), pictures.pop("candidates"), pictures)


candidates = Reconstructions

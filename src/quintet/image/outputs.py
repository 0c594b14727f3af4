"""Outputs of images: reconstructions of a tokenizer, or what a generator makes of held-out
captions."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.task import Batch
from quintet.image.maskgit_task import MaskGitTask
from quintet.image.task import VQGanTask
from quintet.shared.contrastive import ContrastiveTask
from quintet.shared.maskgit.outputs import Generated
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


class GeneratedImages(Generated):
    def shown(self, pixels: Tensor) -> Tensor:
        return super().shown(three_channels(pixels[None])[0])


def outputs(task: Any) -> Outputs:
    if isinstance(task, ContrastiveTask):
        raise RunError("an adopted CLIP has no judges; see the metrics of its run")
    return GeneratedImages(task) if isinstance(task, MaskGitTask) else Reconstructions(task)

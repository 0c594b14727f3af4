"""Training of a flow generator of images (shared/flow/task.py)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.engine.keys import uniform
from quintet.image import data
from quintet.image.flow.config import ImageFlowFewRecipe, ImageFlowRecipe
from quintet.image.flow.model import ImageFlow
from quintet.image.sheets import PictureSheet
from quintet.shared.flow.few_steps import FewSteps
from quintet.shared.flow.task import FlowTask
from quintet.shared.scenes import agreement
from quintet.shared.tokenizer.pixels import displayed, to_bytes


class ImageFlowTask(FlowTask):
    field, settings, room = "image", "images", data
    Model = ImageFlow
    recipe: ImageFlowRecipe | ImageFlowFewRecipe  # type: ignore[assignment]

    def grid(self) -> tuple[int, ...]:
        return ImageFlow.grid_of(self.tokenizer, self.recipe.images.size)

    def given(self, keys: Tensor) -> Tensor:
        """All but a rectangle, or a rectangle alone."""
        height, width = self.config.grid
        corners = uniform(keys, "rectangle", (2, 2)).sort(1).values  # (b, first and last, axes)
        rows, columns = (torch.arange(n, device=keys.device) for n in (height, width))
        down, across = (
            (places >= (corners[:, 0, axis] * size).floor()[:, None])
            & (places <= (corners[:, 1, axis] * size).floor()[:, None])
            for axis, (places, size) in enumerate(((rows, height), (columns, width)))
        )
        rectangle = down[:, :, None] & across[:, None]
        outside = uniform(keys, "rectangle/known", ()) < 0.5
        return (rectangle ^ outside[:, None, None])[:, None]

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return agreement.agrees(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> PictureSheet:
        return PictureSheet("generated", rows, titles, texts)


class ImageFlowFewTask(FewSteps, ImageFlowTask):
    """The same, distilled to few steps."""


def build(recipe: ImageFlowRecipe | ImageFlowFewRecipe) -> ImageFlowTask:
    return (ImageFlowFewTask if isinstance(recipe, ImageFlowFewRecipe) else ImageFlowTask)(recipe)

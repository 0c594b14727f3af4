"""Training of a flow generator of images (shared/flow/task.py)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.engine.data.plans import Plan
from quintet.engine.errors import RunError
from quintet.engine.keys import uniform
from quintet.engine.task import World
from quintet.image import data
from quintet.image.flow.config import ImageFlowFewRecipe, ImageFlowRecipe
from quintet.image.flow.model import ImageFlow
from quintet.image.sheets import PictureSheet
from quintet.shared.flow.buckets import BucketedLatents, BucketPlan, buckets_of, shapes_of
from quintet.shared.flow.data import LatentData
from quintet.shared.flow.few_steps import FewSteps
from quintet.shared.flow.task import FlowTask
from quintet.shared.generation.data import CaptionedPixels
from quintet.shared.scenes import agreement
from quintet.shared.tokenizer.pixels import displayed, to_bytes


class ImageFlowTask(FlowTask):
    field, settings, room = "image", "images", data
    Model = ImageFlow
    plan_of: BucketPlan | None = None
    """The plan of batches of one shape each."""

    def grid(self) -> tuple[int, ...]:
        return ImageFlow.grid_of(self.tokenizer, self.recipe.images.size)

    def given(self, keys: Tensor, grid: tuple[int, ...]) -> Tensor:
        """All but a rectangle, or a rectangle alone."""
        height, width = grid
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

    # -- shapes ---------------------------------------------------------------------------------

    def encoded(self, split: str, source: CaptionedPixels, world: World) -> Any:
        """With buckets, training images of a folder keep about their shape."""
        recipe = self.recipe
        if split == "valid" or recipe.buckets == 1:
            return super().encoded(split, source, world)
        folder = source.source
        if self.sets is not None or not isinstance(folder, data.ImageFolder) or folder.shards:
            raise RunError("buckets is for folders of image files: set it to 1, or unpack shards")
        multiple = self.tokenizer.factor * self.config.patch
        shapes = shapes_of(recipe.images.size, recipe.buckets, multiple)
        ratios = world.on_main(folder.ratios, (OSError, ValueError))
        shapes, indices = buckets_of(ratios, shapes, recipe.global_batch(world.size))
        parts: list[LatentData] = []
        for shape, samples in zip(shapes, indices):
            part = folder.shaped(shape, samples)
            pixels = CaptionedPixels(part, self.field, part.config)
            grid = ImageFlow.grid_of(self.tokenizer, shape)
            parts.append(self.filled(split, pixels, world, grid))  # type: ignore[arg-type]
        self.plan_of = BucketPlan(indices, recipe.seed, recipe.batch_size)
        return BucketedLatents(source, parts, indices)

    def plan(self, source: Any) -> Plan | None:
        return self.plan_of

    # -- evaluation -----------------------------------------------------------------------------

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return agreement.agrees(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> PictureSheet:
        return PictureSheet("generated", rows, titles, texts)


class ImageFlowFewTask(FewSteps, ImageFlowTask):
    """The same, distilled to few steps."""


def build(recipe: ImageFlowRecipe | ImageFlowFewRecipe) -> ImageFlowTask:
    if isinstance(recipe, ImageFlowFewRecipe):
        return ImageFlowFewTask(recipe)
    return ImageFlowTask(recipe)

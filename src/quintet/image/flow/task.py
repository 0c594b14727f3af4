"""Training of a flow generator of images (shared/flow/task.py)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from quintet.engine.data.plans import Plan
from quintet.engine.errors import RunError
from quintet.engine.keys import uniform
from quintet.engine.task import Batch, Exhibit, Rows, World
from quintet.image import data
from quintet.image.flow.config import ImageFlowFewRecipe, ImageFlowRecipe
from quintet.image.flow.enlarging import TITLES, EnlargedSheet, PairedLatents, shrunk, stretched
from quintet.image.flow.model import ImageFlow
from quintet.image.sheets import PictureSheet
from quintet.nn.similarity import psnr, sharpness
from quintet.shared.flow.buckets import BucketedLatents, BucketPlan, buckets_of, shapes_of
from quintet.shared.flow.data import LatentData
from quintet.shared.flow.few_steps import FewSteps
from quintet.shared.flow.task import FlowTask
from quintet.shared.generation.data import CaptionedPixels, in_floats
from quintet.shared.generation.task import SHOWN
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
        multiple = math.lcm(self.tokenizer.factor * self.config.patch, self.config.enlarge or 1)
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

    # -- enlarging ------------------------------------------------------------------------------

    def random_known(self, batch: Batch) -> Tensor:
        known = super().random_known(batch)
        return torch.zeros_like(known) if self.config.enlarge else known

    def uncoded(self, source: CaptionedPixels, variants: int) -> LatentData:
        if self.config.enlarge:
            return PairedLatents(source, variants, self.weights, self.config.enlarge)
        return LatentData(source, variants, self.weights)

    def collate(self, items: list[Any]) -> dict[str, Any]:
        batch = super().collate(items)
        if "beside" in items[0]:
            beside = torch.stack([item["beside"] for item in items])
            batch["beside"] = self.arranged(beside, items[0]["grid"])
        if "original" in items[0]:
            batch["original"] = torch.stack([item["original"] for item in items])
        return batch

    def conditions_of(self, originals: Sequence[Tensor]) -> dict[str, Any]:
        if not self.config.enlarge:
            return {}
        small = shrunk(torch.stack([*originals]).to(self.device), self.config.enlarge)
        return {"beside": cast(ImageFlow, self.model).beside_of(small)}

    def enlarged(self, batch: Batch, rows: Sequence[int]) -> dict[str, Tensor]:
        """Images (b, c, h, w) in 0..1 of some samples, by the titles of an exhibit."""
        captions = [batch.data["caption"][row] for row in rows]
        numbers, latents = [batch.ids[row] for row in rows], self.beside(batch)
        assert latents is not None
        original = in_floats(batch.data["original"][rows], self.tokenizer).float()
        small = shrunk(original, self.config.enlarge)
        made = self.generate(captions, numbers, beside=latents[rows])
        images = (small, stretched(small, self.config.enlarge), made, original)
        return dict(zip(TITLES, images, strict=True))

    def _measure_generation(self, batch: Batch, rows: list[int]) -> dict[str, Rows]:
        if not self.config.enlarge:
            return super()._measure_generation(batch, rows)
        shown, limit = self.enlarged(batch, rows), self.decode(batch.data["codes"][rows])
        original = shown["original"]
        values = {"": shown["enlarged"], "_bicubic": shown["bicubic"], "_tokenizer": limit}
        return {
            f"{name}{what}": Rows(measure(images, original))
            for what, images in values.items()
            for name, measure in (("psnr", psnr), ("sharpness", sharpness))
        }

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        """With a small image: it, enlarged by a bicubic filter and by the model, and the
        original."""
        if not self.config.enlarge:
            return super().exhibit(nets, batch)
        with torch.autocast(self.device.type, enabled=False):
            columns = self.enlarged(batch, range(min(SHOWN, batch.size)))
        rows, captions = [*zip(*columns.values())], batch.data["caption"][:SHOWN]
        return [EnlargedSheet("enlarged", rows, TITLES, captions, columns["small"][0])]

    # -- evaluation -----------------------------------------------------------------------------

    def agrees(self, caption: str, pixels: Tensor) -> bool:
        return agreement.agrees(caption, displayed(to_bytes(pixels)))

    def sheet(
        self, rows: Sequence[Sequence[Tensor]], titles: list[str], texts: list[str]
    ) -> PictureSheet:
        return PictureSheet("generated", rows, titles, texts)


class ImageFlowFewTask(FewSteps, ImageFlowTask):
    """The same, distilled to few steps."""


to_encode = ImageFlowTask.to_encode


def build(recipe: ImageFlowRecipe | ImageFlowFewRecipe) -> ImageFlowTask:
    if isinstance(recipe, ImageFlowFewRecipe):
        return ImageFlowFewTask(recipe)
    return ImageFlowTask(recipe)

"""ImageFlow: images from captions by flow matching (arXiv 2210.02747) over latents.

caption -> flow transformer, some steps -> latents (b, c, h, w) -> tokenizer -> images (b, c, H, W)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.image.flow.config import ImageFlowConfig
from quintet.image.generator import PictureGenerator
from quintet.image.painting import check_painted, inside, touched
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.generation.generator import Seed
from quintet.shared.generation.module import LatentModule


class ImageFlow(PictureGenerator, FlowGenerator):
    """Image generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the images: `ImageFlow(vae, image_size=128, dim=512)`."""

    Config = ImageFlowConfig
    config: ImageFlowConfig

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.image.adopt.model import AdoptedImages
        from quintet.image.vqgan.model import VQGanVAE

        return [VQGanVAE, AdoptedImages, LatentModule]

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str] | str | None = None,
        *,
        count: int | None = None,
        size: int | tuple[int, int] | None = None,
        image: Tensor | None = None,
        mask: Tensor | None = None,
        strength: float | None = None,
        seed: Seed = 0,
        first: int = 0,
        return_latents: bool = False,
        **settings: Any,
    ) -> Tensor:
        """Images (b, c, H, W) in 0..1, one for each text, or `count`; or their normalised latents.

        `size` in pixels, by default that of training. An `image` (c, H, W) is painted into where a
        `mask` (H, W) is true; without a mask all of it changes, by a `strength` of 0 to 1 (0.6).
        `settings`: steps, method, cond_scale (see `Solver`). Image number i depends on the seed and
        on `first` + i, not on the batch.
        """
        solver = self.solver_of(texts, settings)
        grid, factor = self.config.grid, self.tokenizer.factor
        if image is not None:
            size = (image.shape[-2], image.shape[-1]) if size is None else size
        if size is not None:
            grid = self.checked_grid(size)
        if image is None and (mask is not None or strength is not None):
            raise ValueError("mask and strength belong to an image: give one, or drop them")
        context, number, keys = self.prepared(texts, count, seed, first)
        latents = known = None
        if image is not None:
            check_painted(image, mask, (grid[0] * factor, grid[1] * factor))
            image = image.to(self.weight.device)
            latents = self.encode(image[None]).expand(number, -1, *grid)
        if mask is not None:
            mask = mask.to(self.weight.device)
            known = ~touched(mask, factor).expand(number, 1, *grid)
        default = 0.6 if image is not None and mask is None else 1.0
        start = self.start(keys, grid, latents, known, default if strength is None else strength)
        latents = self.solved(start, context, solver)
        if return_latents:
            return latents
        images = self.decode(latents)
        if image is None or mask is None:
            return images
        return torch.where(inside(mask, factor), images, image)

    def checked_grid(self, size: int | tuple[int, int]) -> tuple[int, ...]:
        grid, patch = self.grid_of(self.tokenizer, size), self.config.patch
        if any(side % patch for side in grid):
            raise ValueError(
                f"size {size} is {grid} latents; they must be divisible by the patch of {patch}"
            )
        return grid


Model = ImageFlow

"""ImageFlow: images from captions by flow matching (arXiv 2210.02747) over latents.

caption -> flow transformer, some steps -> latents (b, c, h, w) -> tokenizer -> images (b, c, H, W)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.image.flow.config import ImageFlowConfig
from quintet.image.flow.enlarging import padded, stretched, tiled
from quintet.image.generator import PictureGenerator
from quintet.image.painting import check_painted, inside, touched
from quintet.nn.attention import Context
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
from quintet.shared.generation.generator import Seed
from quintet.shared.generation.module import LatentModule
from quintet.shared.generation.pixels import PixelLatents
from quintet.shared.tokenizer.model import check_floats, check_range

MOST_PIXELS = 2**22
"""Pixels of an enlarged image."""


class ImageFlow(PictureGenerator, FlowGenerator):
    """Image generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the images: `ImageFlow(vae, image_size=128, dim=512)`."""

    Config = ImageFlowConfig
    config: ImageFlowConfig

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.image.adopt.model import AdoptedImages
        from quintet.image.vqgan.model import VQGanVAE

        return [VQGanVAE, AdoptedImages, LatentModule, PixelLatents]

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
        small: Tensor | None = None,
        seed: Seed = 0,
        first: int = 0,
        return_latents: bool = False,
        **settings: Any,
    ) -> Tensor:
        """Images (b, c, H, W) in 0..1, one for each text, or `count`; or their normalised latents.

        `size` in pixels, by default that of training. An `image` (c, H, W) is painted into where a
        `mask` (H, W) is true; without a mask all of it changes, by a `strength` of 0 to 1 (0.6).
        A model with `enlarge` makes `small` images (c, h, w) or (b, c, h, w) larger by its factor.
        `settings`: steps, method, cond_scale (see `Solver`). Image number i depends on the seed and
        on `first` + i, not on the batch.
        """
        solver = self.solver_of(texts, settings)
        if small is not None or self.config.enlarge:
            if any(value is not None for value in (size, image, mask, strength)):
                raise ValueError("small goes without size, image, mask and strength: drop them")
            small = self.checked_small(small)
            count = len(small) if count is None and len(small) > 1 else count
            context, number, keys = self.prepared(texts, count, seed, first)
            latents = self.enlarged(small, context, number, keys, solver)
            sides = [side * self.config.enlarge for side in small.shape[2:]]
            return latents if return_latents else self.decode(latents)[..., : sides[0], : sides[1]]
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

    # -- enlarging ------------------------------------------------------------------------------

    def checked_small(self, small: Tensor | None) -> Tensor:
        """(b, c, h, w)."""
        factor, channels = self.config.enlarge, self.tokenizer.config.channels
        if not factor:
            raise ValueError("this model enlarges nothing: train one with model.enlarge 4")
        if small is None:
            raise ValueError(f"this model enlarges images {factor} times: give small, an image")
        images = (small[None] if small.ndim == 3 else small).to(self.weight.device)
        if images.ndim != 4 or images.shape[1] != channels or not images.numel():
            shape = f"({channels}, h, w) or (b, {channels}, h, w)"
            raise ValueError(f"the small image is {tuple(small.shape)}: give {shape}")
        check_floats(images, "small images")
        check_range(images, "small images")
        height, width = (side * factor for side in images.shape[2:])
        if height * width > MOST_PIXELS:
            raise ValueError(
                f"enlarged, the image would have {height} x {width} pixels, and at most"
                f" {MOST_PIXELS:,} are made: cut or shrink it"
            )
        return images

    def beside_of(self, small: Tensor) -> Tensor:
        """Normalised latents of small images (b, c, h, w) as conditions, on a grid of whole
        patches."""
        coarse = stretched(small, self.config.enlarge)
        return self.encode(padded(coarse, self.tokenizer.factor * self.config.patch))

    def enlarged(
        self, small: Tensor, context: Context | None, number: int, keys: Tensor, solver: Solver
    ) -> Tensor:
        """Normalised latents."""
        if len(small) not in (1, number):
            raise ValueError(f"{len(small)} small images do not match the count {number}")
        beside = self.beside_of(small)
        start = self.start(keys, beside.shape[2:])
        start = start._replace(beside=beside.expand(number, -1, -1, -1))
        return tiled(self, start, context, solver)

    def checked_grid(self, size: int | tuple[int, int]) -> tuple[int, ...]:
        grid, patch = self.grid_of(self.tokenizer, size), self.config.patch
        if any(side % patch for side in grid):
            raise ValueError(
                f"size {size} is {grid} latents; they must be divisible by the patch of {patch}"
            )
        return grid


Model = ImageFlow

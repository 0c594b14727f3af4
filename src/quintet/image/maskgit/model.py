"""MaskGit: images from captions (MaskGIT, arXiv 2202.04200; Muse, arXiv 2301.00704).

caption -> masked transformer, a few steps -> ids (b, h, w) -> tokenizer -> images (b, c, H, W)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.image.generator import PictureGenerator
from quintet.image.maskgit.config import MaskGitConfig
from quintet.image.painting import check_painted, touched
from quintet.shared.generation.generator import Seed
from quintet.shared.maskgit.generator import MaskedGenerator


class MaskGit(PictureGenerator, MaskedGenerator):
    """Image generator, built from a configuration, its fields as keywords, or a tokenizer and the
    size of the images: `MaskGit(vae, image_size=128, dim=768)`."""

    Config = MaskGitConfig
    config: MaskGitConfig

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.image.vqgan.model import VQGanVAE

        return [VQGanVAE]

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str] | str | None = None,
        *,
        count: int | None = None,
        image: Tensor | None = None,
        mask: Tensor | None = None,
        seed: Seed = 0,
        first: int = 0,
        return_ids: bool = False,
        **settings: Any,
    ) -> Tensor:
        """Images (b, c, H, W) in 0..1, one for each text, or `count`; or their ids (b, h, w).

        With an `image` (c, H, W) and a `mask` (H, W) that is true where to paint, the ids of all
        other patches stay as they are. `settings`: steps, order, temperature, choice_temperature,
        cond_scale (see `Decoding`). Image number i depends on the seed and on `first` + i, not on
        the batch.
        """
        decoding = self.decoding_of(texts, settings)
        context, number, keys = self.prepared(texts, count, seed, first)
        ids = self.blank_ids(number)
        if (image is None) != (mask is None):
            raise ValueError("in-painting takes an image and a mask: give both, or none")
        if image is not None and mask is not None:
            ids = self.masked_ids(image, mask).expand(number, -1)
        ids = self.complete(ids, keys, context, decoding)
        return ids.unflatten(1, self.config.grid) if return_ids else self.decode_ids(ids)

    def masked_ids(self, image: Tensor, mask: Tensor) -> Tensor:
        """(1, n): ids of an image, -1 in patches that the mask touches."""
        check_painted(image, mask, self.image_size)
        device = self.weight.device
        ids = self.tokenize_pixels(image[None].to(device))
        return torch.where(touched(mask.to(device), self.tokenizer.factor).flatten(), -1, ids)

    def decode_block(self, ids: Tensor) -> Tensor:
        return self.tokenizer.decode_from_ids(ids)


Model = MaskGit

"""MaskGitUp: super-resolution by a second generator (Muse, arXiv 2301.00704, section 2.6).

Shapes: n fine ids, m coarse ids, d width.

    coarse ids (b, m) of a small image ─ embedding, repeated over the fine positions ┐
    fine ids (b, n), some of them masked ─ embedding ────────────────────────────────┴─ sum ─> …

Both grids cover the same image: the coarse id of a fine position is known, so that its embedding is
added there. Muse attends to the coarse ids instead, which has to learn this and reads m more
positions in each block. Guidance drops the caption alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.image.config import MaskGitUpConfig
from quintet.image.maskgit import MaskGit
from quintet.nn.attention import Context
from quintet.shared.conditioning import in_blocks
from quintet.shared.maskgit.config import digits_of
from quintet.shared.maskgit.generator import check_tokenizer
from quintet.shared.maskgit.model import MaskedLosses, embed_digits


class MaskGitUp(MaskGit):
    """Generator of large images from captions and the ids of small ones: of a configuration, or
    `MaskGitUp(vae, coarse_vae, image_size=256, coarse_size=128, dim=768)`."""

    Config = MaskGitUpConfig
    config: MaskGitUpConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: Any = None,
        coarse_tokenizer: Any = None,
        *,
        coarse_size: Any = None,
        **keywords: Any,
    ) -> None:
        if coarse_tokenizer is not None:
            check_tokenizer(coarse_tokenizer, self.tokenizer_class())
            keywords["coarse_digits"] = digits_of(coarse_tokenizer.config)
        if coarse_size is not None:
            keywords["coarse_grid"] = self.grid_of(coarse_tokenizer, coarse_size)
        super().__init__(config, **keywords)
        self.set_coarse_tokenizer(coarse_tokenizer)

    def build(self, config: MaskGitUpConfig) -> None:  # type: ignore[override]
        if any(fine % coarse for fine, coarse in zip(config.grid, config.coarse_grid)):
            raise ValueError(
                f"the grid of fine ids, {config.grid}, is no multiple of that of coarse ids,"
                f" {config.coarse_grid}: choose other sizes of the images"
            )
        super().build(config)
        scale = config.dim**-0.5
        self.coarse_embed = nn.ParameterList(
            torch.randn(n, config.dim) * scale for n in config.coarse_digits
        )

    # -- the coarse tokenizer -------------------------------------------------------------------

    def set_coarse_tokenizer(self, tokenizer: nn.Module | None) -> None:
        self._coarse: tuple[Any] = (tokenizer,)
        if tokenizer is not None:
            tokenizer.eval().requires_grad_(False)

    @property
    def coarse_tokenizer(self) -> Any:
        if self._coarse[0] is None:
            raise ValueError("this needs the coarse tokenizer: use set_coarse_tokenizer(…)")
        return self._coarse[0].to(self.weight.device)

    @property
    def coarse_size(self) -> tuple[int, int]:
        """Height and width of the small images."""
        height, width = self.config.coarse_grid
        return height * self.coarse_tokenizer.factor, width * self.coarse_tokenizer.factor

    def write_stages(self, path: Path) -> None:
        super().write_stages(path)
        if self._coarse[0] is not None:
            self._coarse[0].save_pretrained(path / "coarse_tokenizer")

    def read_stages(self, path: Path) -> None:
        super().read_stages(path)
        if (path / "coarse_tokenizer").is_dir():
            kind = self.tokenizer_class()
            self.set_coarse_tokenizer(kind.from_pretrained(path / "coarse_tokenizer"))

    # -- the network ----------------------------------------------------------------------------

    def forward(  # type: ignore[override]
        self,
        ids: Tensor,
        masked: Tensor,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
        coarse: Tensor | None = None,
    ) -> MaskedLosses:
        """Losses of ids (b, n) where `masked`, given `coarse` ids (b, m)."""
        assert coarse is not None
        context = self.encode_text(len(ids), text, mask, drop)
        return self.losses(ids, masked, self.with_coarse(context, coarse))

    def with_coarse(self, context: Context | None, coarse: Tensor) -> Context:
        """The context that generation passes on, with the embeddings of the coarse ids behind the
        caption."""
        values = embed_digits(coarse, self.coarse_embed)
        mask = torch.zeros(coarse.shape, dtype=torch.bool, device=coarse.device)
        if context is None:
            return Context(values, mask)
        return Context(
            torch.cat((context.values, values.to(context.values.dtype)), 1),
            torch.cat((context.mask, mask), 1),
        )

    def hidden(self, ids: Tensor, context: Context | None) -> Tensor:
        assert context is not None, "holds the coarse ids"
        grid, coarse_grid = self.config.grid, self.config.coarse_grid
        count = coarse_grid[0] * coarse_grid[1]
        coarse = context.values[:, -count:].unflatten(1, coarse_grid)
        for axis in (0, 1):
            coarse = coarse.repeat_interleave(grid[axis] // coarse_grid[axis], axis + 1)
        caption = None
        if self.config.text != "none":
            caption = Context(context.values[:, :-count], context.mask[:, :-count])
        return self.transform(self.embed(ids) + self.positions() + coarse.flatten(1, 2), caption)

    # -- generation -----------------------------------------------------------------------------

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        texts: Sequence[str] | str | None,
        coarse: Tensor,
        *,
        seed: int = 0,
        first: int = 0,
        return_ids: bool = False,
        **settings: Any,
    ) -> Tensor:
        """Images (b, c, H, W) in 0..1, or their ids (b, h, w): one for each of the `coarse` ids
        (b, h, w) of a `MaskGit`, or images (b, c, H, W) in 0..1 of any size. One text serves all,
        or there are as many. `settings` are those of `MaskGit.generate`."""
        decoding = self.decoding_of(texts, settings)
        coarse = self.coarse_ids(coarse)
        context, _, keys = self.prepared(texts, len(coarse), seed, first)
        context = self.with_coarse(context, coarse)
        ids = self.complete(self.blank_ids(len(coarse)), keys, context, decoding)
        return ids.unflatten(1, self.config.grid) if return_ids else self.decode_ids(ids)

    def coarse_ids(self, coarse: Tensor) -> Tensor:
        """(b, m) of ids or images, checked."""
        grid = self.config.coarse_grid
        if coarse.is_floating_point():
            if coarse.ndim != 4 or not len(coarse):
                raise ValueError(f"images are (b, c, H, W), not {tuple(coarse.shape)}")
            return self.tokenize_coarse(coarse.to(self.weight.device))
        if not len(coarse) or tuple(coarse.shape[1:]) != grid:
            raise ValueError(
                f"the coarse ids are {tuple(coarse.shape)}, but this model takes (b, {grid[0]},"
                f" {grid[1]}): give ids of its coarse tokenizer, or images"
            )
        if coarse.min() < 0 or coarse.max() >= self.config.coarse_codebook_size:
            raise ValueError(
                f"coarse ids must be from 0 to {self.config.coarse_codebook_size - 1}: they are"
                " those of another tokenizer"
            )
        return coarse.flatten(1).long().to(self.weight.device)

    def tokenize_coarse(self, images: Tensor) -> Tensor:
        """Coarse ids (b, m) of images of any size."""
        tokenize, size = self.coarse_tokenizer.tokenize, self.coarse_size
        return in_blocks(lambda x: tokenize(shrunk(x, size)), self.block_rows, images).flatten(1)

    def decode_coarse(self, coarse: Tensor) -> Tensor:
        """The small images of coarse ids (b, m), enlarged without interpolation."""
        ids = coarse.unflatten(1, self.config.coarse_grid)
        images = in_blocks(self.coarse_tokenizer.decode_from_ids, self.block_rows, ids)
        return F.interpolate(images, self.image_size)


class TwoTokenizers(nn.Module):
    """Fine and coarse ids of images, as one row (b, n + m)."""

    def __init__(self, fine: nn.Module, coarse: nn.Module, coarse_size: tuple[int, int]) -> None:
        super().__init__()
        self.fine, self.coarse, self.coarse_size = fine, coarse, coarse_size

    def tokenize(self, images: Tensor) -> Tensor:
        small = shrunk(images, self.coarse_size)
        ids = self.fine.tokenize(images), self.coarse.tokenize(small)  # type: ignore[operator]
        return torch.cat([part.flatten(1) for part in ids], 1)


def shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """By antialiased bicubic interpolation, in 0..1."""
    if tuple(images.shape[-2:]) == size:
        return images
    return F.interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)

"""MaskedTransformer: predicts masked ids of pictures and clips (MaskGIT, Muse).

Shapes: b samples, n ids in row-major order of their grid, d width.

    ids (b, n), -1 where masked -> sum of embeddings of their digits, or the mask embedding
                                -> bidirectional blocks with cross-attention to the caption, each
                                   after a scale and a shift by the mean of the caption
                                -> a softmax over each digit, given the digits before it

64,000 codes are two digits of base 512 and 125, of which each has an embedding table and a softmax
(as the sub-tokens of Open-MAGVIT2, arXiv 2409.04410): 637 rows instead of 64,000, of which each is
seen a hundred times as often. The mean of a caption is a short way to every position, as the pooled
text of aMUSEd (arXiv 2401.01808): small networks learn with it what cross-attention learns late.
The second digit is drawn given the first, so that the factorisation is exact; independent digits
would be drawn from different patches where several are likely.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import uniform
from quintet.nn.attention import Context
from quintet.nn.digit_head import DigitHead
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import residual_stream
from quintet.nn.rope import rope_grid
from quintet.shared.conditioning import CaptionConditioned
from quintet.shared.maskgit.config import MaskedConfig

LABEL_SMOOTHING = 0.1


class MaskedLosses(NamedTuple):
    """Sums over each sample of a batch; all (b,)."""

    loss_sum: Tensor
    """fp32: sum over the masked ids."""
    masked: Tensor
    """Number of masked ids."""
    correct: Tensor
    """Masked ids predicted correctly."""


class MaskedTransformer(CaptionConditioned):
    config: MaskedConfig
    compiles_whole = True

    def build(self, config: MaskedConfig) -> None:
        dim, scale = config.dim, config.dim**-0.5
        self.digit_embed = nn.ParameterList(torch.randn(n, dim) * scale for n in config.digits)
        self.mask_embed = nn.Parameter(torch.randn(dim) * scale)
        # Rotary embeddings are relative: alone, they could not tell apart positions that are all
        # masked. A sum of embeddings by axis can.
        self.axis_embed = nn.ParameterList(torch.randn(n, dim) * scale for n in config.grid)
        self.blocks = nn.ModuleList(self.block(index) for index in range(config.layers))
        self.norm = RMSNorm(dim)
        self.head = DigitHead(dim, config.digits, 1, LABEL_SMOOTHING)
        self.init_text(config)
        if config.text != "none":
            self.modulation = nn.Linear(dim, 2 * config.layers * dim)
            nn.init.normal_(self.modulation.weight, std=0.02)
            nn.init.zeros_(self.modulation.bias)

    def regions(self) -> list[nn.Module]:
        return [*self.blocks]

    def forward(
        self,
        ids: Tensor,
        masked: Tensor,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
    ) -> MaskedLosses:
        """Losses of ids (b, n) where `masked` (b, n).

        `text`: byte ids (b, m), or embeddings (b, m, text_dim) with their `mask` (b, m).
        `drop` (b,): true where the caption is dropped.
        """
        context = self.encode_text(len(ids), text, mask, drop)
        hidden = self.hidden(torch.where(masked, -1, ids), context)
        rows, targets = hidden.flatten(0, 1), torch.where(masked, ids, -1).flatten()
        losses = self.head.losses(0, rows, targets, rows)
        per_sample = (values.view(ids.shape).sum(1) for values in losses)
        loss, correct = per_sample
        return MaskedLosses(loss, masked.sum(1), correct)

    def hidden(self, ids: Tensor, context: Context | None) -> Tensor:
        """Hidden states (b, n, d) that predict the masked ids."""
        x = residual_stream(self.embed(ids) + self.positions())
        rope = rope_grid(self.config.grid, self.config.head_dim, x.device)
        for block, modulation in zip(self.blocks, self.modulations(x, context)):
            x = x if modulation is None else scale_shift(x, modulation)
            x = block(x, rope, context=context)
        return self.norm(x)

    def modulations(self, x: Tensor, context: Context | None) -> Sequence[Tensor | None]:
        """(b, 1, 2 d) for each block, of the mean of the visible caption."""
        if context is None:
            return [None] * len(self.blocks)
        weights = context.mask.to(context.values.dtype)[:, None]
        pooled = (weights @ context.values) / weights.sum(-1, keepdim=True)
        return self.modulation(pooled).to(x.dtype).chunk(len(self.blocks), -1)

    def embed(self, ids: Tensor) -> Tensor:
        x = embed_digits(ids.clamp_min(0), self.digit_embed)
        return torch.where((ids >= 0)[..., None], x, self.mask_embed)

    def positions(self) -> Tensor:
        """(n, d): the sum of an embedding for each axis."""
        grid, axes = self.config.grid, len(self.config.grid)
        total = torch.zeros((), device=self.mask_embed.device, dtype=self.mask_embed.dtype)
        for axis, table in enumerate(self.axis_embed):
            shape = [grid[axis] if other == axis else 1 for other in range(axes)]
            total = total + table.view(*shape, -1)
        return total.flatten(0, -2)


def scale_shift(x: Tensor, modulation: Tensor) -> Tensor:
    scale, shift = modulation.chunk(2, -1)
    return torch.addcmul(x + shift, x, scale)


def embed_digits(codes: Tensor, tables: nn.ParameterList) -> Tensor:
    """(…, d): sum of the embeddings of the digits of codes, one table (base, d) for each."""
    total = torch.zeros((), device=codes.device, dtype=tables[0].dtype)
    for table in tables:
        total = total + F.embedding(codes % len(table), table)
        codes = codes // len(table)
    return total


def random_mask(keys: Tensor, grid: Sequence[int], prefix: float = 0.0) -> Tensor:
    """(b, n): ids that are masked in training, by the cosine schedule of generation; at least one
    of each sample.

    Of a fraction `prefix` of clips the first latent frames are given, from one to all but one.
    """
    frames, size = grid[0], torch.Size(grid).numel()
    scores = uniform(keys, "mask", (size,))
    if prefix and frames > 1:
        chosen = uniform(keys, "prefix", ()) < prefix
        length = 1 + (uniform(keys, "prefix/length", ()) * (frames - 1)).long()
        frame = torch.arange(size, device=keys.device) // (size // frames)
        scores = torch.where(chosen[:, None] & (frame < length[:, None]), 2.0, scores)
    ratio = torch.cos(uniform(keys, "mask/ratio", ()) * (math.pi / 2))[:, None]
    return (scores < ratio) | (scores == scores.amin(1, keepdim=True))

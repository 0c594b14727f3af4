"""Towers of MuLaN (arXiv 2208.12415): a spectrogram transformer (AST, arXiv 2104.01778), and a text
transformer over bytes or over the embeddings of a frozen encoder.

Shapes: b samples, n audio samples, m mel bins, f frames; a patch is p bins by q frames; c columns
of r rows of patches, in that order, so that padding comes last; k patches after patch dropout.

The embedding of a clip depends neither on its padding nor on the other clips of the batch.
"""

from math import ceil
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import uniform
from quintet.music.config import MusicLossConfig
from quintet.music.mulan.config import MuLaNConfig
from quintet.nn.alignment import inside
from quintet.nn.attention import Block
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import (
    FullPrecisionLinear,
    full_precision,
    residual_stream,
    without_autocast,
)
from quintet.nn.rope import Rope, rope_grid
from quintet.nn.spectrogram import LogMel, band_mask
from quintet.nn.text import TextEncoder

FLOOR = 1e-5
"""Floor of the mel energy: some 70 dB below a clear note."""
MASK_WIDTH = 0.1
"""Maximum width of a mask of SpecAugment, as a share of the clip or of the mel bins."""
LANES = 8
"""The number of kept patches is a multiple of this: masked attention is faster."""


class Draws(NamedTuple):
    """Random draws of SpecAugment and patch dropout."""

    time: Tensor
    """(b, masks, 2): width and position of each time mask, as shares of the clip."""
    freq: Tensor
    """(b, masks, 2): the same for the mel bins."""
    patches: Tensor
    """(b, c r): the patches with the lowest values are kept."""


def draw_masks(keys: Tensor, losses: MusicLossConfig) -> tuple[Tensor, Tensor]:
    """Masks of time and of frequency, as in `Draws`."""

    def draw(name: str, count: int) -> Tensor:
        width, position = uniform(keys, name, (count, 2)).unbind(-1)
        return torch.stack((width * MASK_WIDTH, position), -1)

    return draw("time", losses.time_masks), draw("frequency", losses.freq_masks)


class Patches(NamedTuple):
    """Input of the audio transformer."""

    values: Tensor
    """(b, k, p q)."""
    indices: Tensor | None
    """(b, k): index of each patch; None for all patches in order."""
    mask: Tensor | None
    """(b, k) booleans; None without padding."""


def masked_mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """(b, n, d) -> (b, d) in full precision."""
    hidden = full_precision(hidden)
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def standardised(mels: Tensor, mask: Tensor | None) -> Tensor:
    """(b, m, f) with zero mean and unit variance over the mask (b, f), 0 elsewhere: the loudness of
    a recording carries no information about the music."""
    if mask is None:
        mean = mels.mean((1, 2), keepdim=True)
        return (mels - mean) / (mels.var((1, 2), correction=0, keepdim=True) + 1e-5).sqrt()
    weight = mask[:, None].to(mels.dtype)
    count = weight.sum(2, keepdim=True) * mels.shape[1]
    mean = (mels * weight).sum((1, 2), keepdim=True) / count
    centred = (mels - mean) * weight
    return centred / (centred.square().sum((1, 2), keepdim=True) / count + 1e-5).sqrt()


class ProjectionHead(nn.Module):
    """Pooled features -> embeddings of unit length, in full precision."""

    def __init__(self, dim: int, dim_latent: int) -> None:
        super().__init__()
        self.proj = FullPrecisionLinear(dim, dim_latent, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        with without_autocast(pooled):
            return F.normalize(self.proj(full_precision(pooled)), dim=-1)


class AudioTower(nn.Module):
    """Audio (b, n) -> embeddings (b, l) of unit length."""

    def __init__(self, config: MuLaNConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.mel = LogMel(
            config.sample_rate,
            config.n_fft,
            config.hop_length,
            config.n_mels,
            config.f_min,
            floor=FLOOR,
        )
        self.patch_embed = nn.Linear(config.patch_size[0] * config.patch_size[1], dim)
        # The rotary embedding is relative; this adds the absolute position along frequency.
        self.freq_embed = nn.Parameter(torch.randn(config.patch_rows, dim) * 0.02)
        blocks = (Block(dim, config.heads, config.head_dim) for _ in range(config.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(dim)
        self.head = ProjectionHead(dim, config.dim_latent)

    def forward(self, wavs: Tensor, lengths: Tensor | None, draws: Draws | None) -> Tensor:
        """Without `lengths` no clip is padded; without `draws` there is no augmentation."""
        patches = self.patches(wavs, lengths, draws)
        x = self.patch_embed(patches.values) + self.freq_embedding(patches.indices, wavs.shape[1])
        x = residual_stream(x)
        rotation = self.rotation(patches.indices, wavs)
        for block in self.blocks:
            x = block(x, rotation, mask=patches.mask)
        return self.head(masked_mean(self.norm(full_precision(x)), patches.mask))

    # -- patches --------------------------------------------------------------------------------

    def num_frames(self, samples: int) -> int:
        return max(1, samples // self.config.hop_length)

    def num_columns(self, samples: int) -> int:
        return -(-self.num_frames(samples) // self.config.patch_size[1])

    def patches(self, wavs: Tensor, lengths: Tensor | None, draws: Draws | None) -> Patches:
        num_frames, columns = self.num_frames(wavs.shape[1]), self.num_columns(wavs.shape[1])
        extent = None if lengths is None else (lengths // self.config.hop_length).clamp_min(1)
        mask = None if extent is None else inside(extent, num_frames)
        mels = standardised(self.mel(wavs)[..., :num_frames], mask)
        if draws is not None:
            time = band_mask(draws.time, num_frames if extent is None else extent, num_frames)
            freq = band_mask(draws.freq, mels.shape[1], mels.shape[1])
            mels = mels.masked_fill(time[:, None] | freq[..., None], 0.0)
        p, q = self.config.patch_size
        mels = F.pad(mels, (0, columns * q - num_frames))
        values = rearrange(mels, "b (r p) (c q) -> b (c r) (p q)", p=p, q=q)
        counts = None if extent is None else -(-extent // q) * self.config.patch_rows
        if draws is not None and self.config.patch_dropout:
            return self.drop_patches(values, counts, draws.patches)
        return Patches(values, None, None if counts is None else inside(counts, values.shape[1]))

    def drop_patches(self, values: Tensor, counts: Tensor | None, draws: Tensor) -> Patches:
        """Keep a static number of patches; a padded clip keeps the same share of its own."""
        num_patches, share, mask = values.shape[1], 1 - self.config.patch_dropout, None
        remaining = min(num_patches, ceil(num_patches * share / LANES) * LANES)
        if counts is not None:
            draws = draws.masked_fill(~inside(counts, num_patches), 2.0)
            lengths = (counts.double() * share / LANES).ceil() * LANES
            mask = inside(lengths.minimum(counts), remaining)
        indices = draws.argsort(dim=1, stable=True)[:, :remaining]
        values = values.gather(1, indices[..., None].expand(-1, -1, values.shape[2]))
        return Patches(values, indices, mask)

    # -- positions ------------------------------------------------------------------------------

    def freq_embedding(self, indices: Tensor | None, samples: int) -> Tensor:
        if indices is None:
            return self.freq_embed.repeat(self.num_columns(samples), 1)
        # Not by indexing: its backward sums in a nondeterministic order over threads.
        return F.embedding(indices % self.config.patch_rows, self.freq_embed)

    def rotation(self, indices: Tensor | None, wavs: Tensor) -> Rope:
        columns, head_dim = self.num_columns(wavs.shape[1]), self.config.head_dim
        rotation = rope_grid((columns, self.config.patch_rows), head_dim, wavs.device)
        if indices is None:
            return rotation
        return Rope(rotation.cos[indices][:, None], rotation.sin[indices][:, None])

    def draws(self, keys: Tensor, samples: int, losses: MusicLossConfig) -> Draws:
        """Augmentation draws of each clip by its key, independent of padding."""
        num_patches = self.num_columns(samples) * self.config.patch_rows
        return Draws(*draw_masks(keys, losses), uniform(keys, "patches", (num_patches,)))


class TextTower(nn.Module):
    """Ids (b, t), or states (b, t, d) of a frozen encoder -> embeddings (b, l) of unit length."""

    def __init__(self, config: MuLaNConfig) -> None:
        super().__init__()
        dim = config.text_dim
        self.encoder = None
        if config.text == "bytes":
            self.encoder = TextEncoder(
                dim,
                config.text_layers,
                config.text_heads,
                head_dim=config.text_head_dim,
                vocab_size=config.vocab_size,
            )
        self.head = ProjectionHead(dim, config.dim_latent)

    def forward(self, text: Tensor, mask: Tensor | None) -> Tensor:
        if self.encoder is None:
            hidden = F.rms_norm(full_precision(text), text.shape[-1:])
            return self.head(masked_mean(hidden, mask))
        return self.head(masked_mean(*self.encoder(text)))

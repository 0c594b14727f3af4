"""The two towers of MuLaN (arXiv 2208.12415): patches of a spectrogram (AST, arXiv 2104.01778), and
bytes or the embeddings of a frozen encoder.

Shapes: b samples, n audio samples, m mel bins, f frames; a patch is p bins by q frames; c columns
of r rows of patches, in that order, so that what is padded comes last; k patches that are kept.

A sound's embedding depends on nothing but the sound: neither on what it is padded to nor on its
neighbours in the batch.
"""

from math import ceil
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import uniform
from quintet.music.config import MuLaNConfig, MusicLossConfig
from quintet.nn.attention import Block
from quintet.nn.quantise import full_precision, without_autocast
from quintet.nn.rotary import Rotation, picture_rotation
from quintet.nn.spectrogram import LogMel, hidden_bands
from quintet.nn.text import TextEncoder

FLOOR = 1e-5
"""Energy of a mel bin that counts as silence: some 70 dB below a clear note."""
LANES = 8
"""Kept patches come in such multiples: attention with a mask is quick on them."""


class Draws(NamedTuple):
    """What is hidden from the audio tower in training."""

    time: Tensor
    """(b, bands, 2): width and place of each band, as shares of the sound."""
    frequency: Tensor
    """(b, bands, 2): the same of the bins."""
    patches: Tensor
    """(b, c r): those with the lowest numbers are kept."""


def draw_bands(keys: Tensor, name: str, count: int, share: float) -> Tensor:
    width, place = uniform(keys, name, (count, 2)).unbind(-1)
    return torch.stack((width * share, place), -1)


class Patches(NamedTuple):
    """What the tower looks at."""

    values: Tensor
    """(b, k, p q)."""
    cells: Tensor | None
    """(b, k): which patches they are; None where they are all of them, in order."""
    mask: Tensor | None
    """(b, k) booleans; None where every patch counts."""


def masked_mean(rows: Tensor, mask: Tensor | None) -> Tensor:
    """(b, n, d) -> (b, d) in full precision."""
    rows = full_precision(rows)
    if mask is None:
        return rows.mean(1)
    return (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def standardised(mels: Tensor, seen: Tensor | None) -> Tensor:
    """(b, m, f) with mean 0 and deviation 1 over what is seen (b, f), and 0 elsewhere: how loud a
    recording is says nothing of the music."""
    if seen is None:
        mean = mels.mean((1, 2), keepdim=True)
        return (mels - mean) / (mels.var((1, 2), correction=0, keepdim=True) + 1e-5).sqrt()
    weight = seen[:, None].to(mels.dtype)
    count = weight.sum(2, keepdim=True) * mels.shape[1]
    mean = (mels * weight).sum((1, 2), keepdim=True) / count
    apart = (mels - mean) * weight
    return apart / (apart.square().sum((1, 2), keepdim=True) / count + 1e-5).sqrt()


class Head(nn.Module):
    """Pooled features to embeddings of length one, in full precision."""

    def __init__(self, dim: int, dim_latent: int) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, dim_latent, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        with without_autocast(pooled):
            return F.normalize(self.projection(full_precision(pooled)), dim=-1)


class AudioTower(nn.Module):
    """Sounds (b, n) -> embeddings of length one."""

    def __init__(self, config: MuLaNConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.mel = LogMel(
            config.rate, config.n_fft, config.hop, config.bins, config.low, config.high, floor=FLOOR
        )
        self.to_tokens = nn.Linear(config.patch[0] * config.patch[1], dim)
        # Attention knows how far apart patches are; this says how high they are.
        self.heights = nn.Parameter(torch.randn(config.rows, dim) * 0.02)
        blocks = (Block(dim, config.heads, config.head_dim) for _ in range(config.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(dim)
        self.head = Head(dim, config.dim_latent)

    def forward(self, wavs: Tensor, lengths: Tensor | None, draws: Draws | None) -> Tensor:
        """Without lengths every sound fills its row; without draws nothing is hidden."""
        seen = self.patches(wavs, lengths, draws)
        x = self.to_tokens(seen.values) + self.height_of(seen.cells, wavs.shape[1])
        rotation = self.rotation(seen.cells, wavs)
        for block in self.blocks:
            x = block(x, rotation, mask=seen.mask)
        return self.head(masked_mean(self.norm(x), seen.mask))

    # -- from sounds to patches -----------------------------------------------------------------

    def frames(self, samples: int) -> int:
        return max(1, samples // self.config.hop)

    def columns(self, samples: int) -> int:
        return -(-self.frames(samples) // self.config.patch[1])

    def kept(self, cells: int) -> int:
        """How many of so many patches are kept in training."""
        return min(cells, ceil(cells * (1 - self.config.patch_dropout) / LANES) * LANES)

    def patches(self, wavs: Tensor, lengths: Tensor | None, draws: Draws | None) -> Patches:
        frames, columns = self.frames(wavs.shape[1]), self.columns(wavs.shape[1])
        extent = None if lengths is None else (lengths // self.config.hop).clamp_min(1)
        seen = None if extent is None else self.before(frames, extent)
        mels = standardised(self.mel(wavs)[..., :frames], seen)
        if draws is not None:
            mels = self.hide(mels, frames if extent is None else extent, draws)
        p, q = self.config.patch
        mels = F.pad(mels, (0, columns * q - frames))
        values = rearrange(mels, "b (r p) (c q) -> b (c r) (p q)", p=p, q=q)
        cells = None if extent is None else -(-extent // q) * self.config.rows
        if draws is not None and self.config.patch_dropout:
            return self.drop(values, cells, draws.patches)
        return Patches(values, None, None if cells is None else self.before(values.shape[1], cells))

    @staticmethod
    def before(size: int, extent: Tensor) -> Tensor:
        """(b, size) booleans, true up to each extent (b,)."""
        return torch.arange(size, device=extent.device) < extent[:, None]

    def hide(self, mels: Tensor, extent: Tensor | int, draws: Draws) -> Tensor:
        time = hidden_bands(draws.time, extent, mels.shape[2])
        height = hidden_bands(draws.frequency, mels.shape[1], mels.shape[1])
        return mels.masked_fill(time[:, None] | height[..., None], 0.0)

    def drop(self, values: Tensor, cells: Tensor | None, draws: Tensor) -> Patches:
        """A static number of patches is kept, of which short sounds use the same share."""
        size = values.shape[1]
        if cells is not None:
            draws = draws.masked_fill(~self.before(size, cells), 2.0)
        count = self.kept(size)
        chosen = draws.argsort(dim=1, stable=True)[:, :count]
        mask = None
        if cells is not None:
            some = (cells.double() * (1 - self.config.patch_dropout) / LANES).ceil() * LANES
            mask = self.before(count, some.minimum(cells))
        index = chosen[..., None].expand(-1, -1, values.shape[2])
        return Patches(values.gather(1, index), chosen, mask)

    # -- where patches are ----------------------------------------------------------------------

    def height_of(self, cells: Tensor | None, samples: int) -> Tensor:
        if cells is None:
            return self.heights.repeat(self.columns(samples), 1)
        # Not by an index: its gradient is summed by whichever thread comes first.
        return F.embedding(cells % self.config.rows, self.heights)

    def rotation(self, cells: Tensor | None, wavs: Tensor) -> Rotation:
        columns, head_dim = self.columns(wavs.shape[1]), self.config.head_dim
        every = picture_rotation(columns, self.config.rows, head_dim, wavs.device)
        if cells is None:
            return every
        return Rotation(every.cos[cells][:, None], every.sin[cells][:, None])

    def draws(self, keys: Tensor, samples: int, losses: MusicLossConfig) -> Draws:
        """What is hidden from each sound, by its key; padding changes nothing of it."""
        return Draws(
            draw_bands(keys, "time", losses.time_bands, losses.time_share),
            draw_bands(keys, "frequency", losses.frequency_bands, losses.frequency_share),
            uniform(keys, "patches", (self.columns(samples) * self.config.rows,)),
        )


class TextTower(nn.Module):
    """Ids (b, n), or embeddings (b, n, d) of a frozen encoder -> embeddings of length one."""

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
                vocabulary=config.vocabulary,
            )
        self.head = Head(dim, config.dim_latent)

    def forward(self, text: Tensor, mask: Tensor | None) -> Tensor:
        if self.encoder is None:
            rows = F.rms_norm(full_precision(text), text.shape[-1:])
            return self.head(masked_mean(rows, mask))
        found = self.encoder(text)
        return self.head(masked_mean(found.values, found.mask))

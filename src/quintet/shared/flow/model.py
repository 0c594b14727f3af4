"""FlowTransformer: velocities of latents (flow matching, arXiv 2210.02747; DiT, 2212.09748).

Shapes: b samples, c channels, n latents in row-major order of their grid, m rows of text, d width.

    latents on their way from noise to data, known ones as they are (b, c, *grid)
        -> patches -> tokens (b, n / patch ** 2, d) with the waves of their positions
    caption -> text encoder -> rows of the stream (b, 1 + m, d)
    both -> blocks, each modulated by the time and the mean of the caption -> velocities

Modulation is shared by the blocks, with an offset for each (PixArt, arXiv 2310.00426). A learned
row stands in place of padding, so that attention needs no mask. Rotary positions alone are
relative: an edge or a corner would have to be found from its neighbours; a linear layer over waves
of the position says where a token is, on grids of any size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.keys import normal
from quintet.nn.adaptive_norm import Gated, adaptive_norm
from quintet.nn.attention import Context, FeedForward, SelfAttention, linear, zero_init
from quintet.nn.precision import full_precision, residual_stream
from quintet.nn.rope import Rope, rope_grid
from quintet.shared.conditioning import CaptionConditioned
from quintet.shared.flow.config import FlowConfig

WAVES = 32
"""Frequencies of a position along an axis, and of a time."""
LONGEST_POSITION, SHORTEST_TIME = 200.0, 1000.0
"""Longest wavelength of positions in latents; shortest one of times, as a fraction 1 / this."""


def small_init(layer: nn.Linear) -> nn.Linear:
    """Not zero: conditions would begin to count only after the layers behind have learned."""
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


class FlowBlock(nn.Module):
    """Attention and feed-forward over the whole stream, scaled, shifted and gated."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.dim, config.heads, config.head_dim)
        self.feed_forward = FeedForward(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        # Shift, scale and gate of each half. Gates start at 1: the branches start at 0 already.
        self.offsets = nn.Parameter(torch.zeros(6, config.dim))
        with torch.no_grad():
            self.offsets[2::3] = 1

    def forward(self, stream: Gated, rope: Rope, modulation: Tensor) -> Gated:
        """`modulation` (b, 6, d)."""
        parts = (modulation + self.offsets).to(stream.x.dtype).unsqueeze(2).unbind(1)
        shift, scale, gate, ff_shift, ff_scale, ff_gate = parts
        x, normed = adaptive_norm(stream, shift, scale)
        attended = self.dropout(self.attention(normed, rope, causal=False))
        x, normed = adaptive_norm(Gated(x, attended, gate), ff_shift, ff_scale)
        return Gated(x, self.dropout(self.feed_forward(normed)), ff_gate)


class FlowTransformer(CaptionConditioned):
    config: FlowConfig
    latent_mean: Tensor
    """(c,): of the latents of the training data."""
    latent_std: Tensor
    """(c,); zeros until the latents are measured."""
    _measured = False

    def build(self, config: FlowConfig) -> None:
        dim, cells = config.dim, config.cells
        self.register_buffer("latent_mean", torch.zeros(config.latent_channels))
        self.register_buffer("latent_std", torch.zeros(config.latent_channels))
        self.embed = nn.Linear(config.latent_channels * cells, dim)
        self.known = zero_init(linear(cells, dim))
        self.position = linear(2 * WAVES * len(config.grid), dim)
        self.time = nn.Sequential(nn.Linear(2 * WAVES, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.variant = nn.Embedding(2, dim)
        if config.jumps:
            self.jump = zero_init(linear(2 * WAVES, dim))
        if config.has_beside:
            self.beside = zero_init(linear(config.latent_channels * cells, dim))
        self.init_text(config)
        self.modulation = small_init(nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(FlowBlock(config) for _ in range(config.layers))
        self.last = small_init(nn.Linear(dim, 2 * dim))
        self.head = zero_init(nn.Linear(dim, config.latent_channels * cells))

    def regions(self) -> list[nn.Module]:
        return [*self.blocks]

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        known: Tensor,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
        changed: Tensor | None = None,
        end: Tensor | None = None,
        beside: Tensor | None = None,
    ) -> Tensor:
        """`velocity` under captions: ids of text, or embeddings with their mask; `drop` (b,) is
        true where the caption is dropped."""
        context = self.encode_text(x.shape[0], text, mask, drop)
        return self.velocity(x, time, known, context, changed, end, beside)

    def velocity(
        self,
        x: Tensor,
        time: Tensor,
        known: Tensor,
        context: Context | None = None,
        changed: Tensor | None = None,
        end: Tensor | None = None,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Velocities (b, c, *grid) of normalised latents at times (b,) from 0 (noise) to 1 (data).

        Latents where `known` (b, 1, *grid) are those of the data. `changed` (b,): augmented samples
        of training. `end` (b,): with jumps, the time that a step goes to; by default the velocity
        is that of the moment. `beside` (b, c, *grid): normalised latents of a condition.
        """
        grid, patch = tuple(x.shape[2:]), self.config.patch
        beside = self.beside_of_known(x, known, beside)
        tokens = self.embed(patches(x, patch)) + self.known(patches(known.to(x.dtype), patch))
        if beside is not None:
            tokens = tokens + self.beside(patches(beside.to(x.dtype), patch))
        cells = (*grid[:-2], *(side // patch for side in grid[-2:]))
        tokens = tokens + self.position(position_waves(cells, patch, x))
        state = self.time(waves(time * 1000, SHORTEST_TIME).to(tokens.dtype))
        variant = torch.zeros_like(time, dtype=torch.int64) if changed is None else changed.long()
        state = state + self.variant(variant)
        if self.config.jumps and end is not None:
            lengths = torch.stack((end - time, torch.zeros_like(time))) * 1000
            long, none = waves(lengths, SHORTEST_TIME).to(state.dtype)
            state = state + self.jump(long - none)
        rope = rope_grid(cells, self.config.head_dim, x.device)
        if context is not None:
            rows = self.rows_of_text(context)
            state = state + pooled(context).to(state.dtype)
            tokens = torch.cat((rows.to(tokens.dtype), tokens), 1)
            rope = unrotated(rope, rows.shape[1])
        state = F.silu(state)
        modulation = self.modulation(state).unflatten(-1, (6, -1))
        stream = Gated(residual_stream(tokens))
        for block in self.blocks:
            stream = block(stream, rope, modulation)
        shift, scale = self.last(state)[:, None].to(stream.x.dtype).chunk(2, -1)
        x, branch, gate = stream
        of_latents = slice(-math.prod(cells), None)
        branch = None if branch is None else branch[:, of_latents]
        _, last = adaptive_norm(Gated(x[:, of_latents], branch, gate), shift, scale)
        return unpatched(full_precision(self.head(last)), cells, patch)

    def beside_of_known(self, x: Tensor, known: Tensor, beside: Tensor | None) -> Tensor | None:
        """Latents of a condition: as they are given, or what a model finds in the known ones."""
        return beside

    def rows_of_text(self, context: Context) -> Tensor:
        """(b, 1 + m, d): the caption, and the embedding of none where it is padded or dropped."""
        missing = 1 + self.config.text_length - context.values.shape[1]
        values = torch.where(context.mask[..., None], context.values, self.null_text)
        if missing <= 0:
            return values
        padding = self.null_text.to(values.dtype).expand(values.shape[0], missing, -1)
        return torch.cat((values, padding), 1)

    # -- latents --------------------------------------------------------------------------------

    @property
    def measured_latents(self) -> bool:
        """Whether mean and deviation of the latents are known. Once true it is not read from the
        device again, which would wait for what is being generated."""
        self._measured = self._measured or bool(self.latent_std.any())
        return self._measured

    def normalised(self, latents: Tensor) -> Tensor:
        """(b, c, *grid) with mean 0 and deviation 1."""
        mean, std = per_channel(self.latent_mean, latents), per_channel(self.latent_std, latents)
        return (full_precision(latents) - mean) / std

    def restored(self, latents: Tensor) -> Tensor:
        """`normalised` undone."""
        mean, std = per_channel(self.latent_mean, latents), per_channel(self.latent_std, latents)
        return full_precision(latents) * std + mean


def pooled(context: Context) -> Tensor:
    """(b, d): the mean of the visible caption."""
    weights = context.mask.to(context.values.dtype)[:, None]
    return ((weights @ context.values) / weights.sum(-1, keepdim=True))[:, 0]


def per_channel(values: Tensor, latents: Tensor) -> Tensor:
    return full_precision(values).view(-1, *[1] * (latents.ndim - 2))


def waves(values: Tensor, longest: float) -> Tensor:
    """(…, 2 WAVES), fp32: cosines and sines with wavelengths of 2 pi to 2 pi `longest`."""
    exponents = torch.arange(WAVES, device=values.device, dtype=torch.float32) / (WAVES - 1)
    angles = full_precision(values)[..., None] * longest**-exponents
    return torch.cat((angles.cos(), angles.sin()), -1)


def position_waves(cells: Sequence[int], patch: int, like: Tensor) -> Tensor:
    """(n, 2 WAVES axes): waves of each position along each axis, counted from the middle."""
    parts: list[Tensor] = []
    for axis, size in enumerate(cells):
        step = patch if axis >= len(cells) - 2 else 1
        index = torch.arange(size, device=like.device, dtype=torch.float32)
        part = waves((index - (size - 1) / 2) * step, LONGEST_POSITION)
        shape = [size if other == axis else 1 for other in range(len(cells))]
        parts.append(part.view(*shape, -1).expand(*cells, -1))
    return torch.cat(parts, -1).flatten(0, -2).to(like.dtype)


def unrotated(rope: Rope, rows: int) -> Rope:
    """With so many rows before the first that are not rotated."""
    return Rope(F.pad(rope.cos, (0, 0, rows, 0), value=1.0), F.pad(rope.sin, (0, 0, rows, 0)))


def patches(x: Tensor, patch: int) -> Tensor:
    """(b, c, *grid) -> (b, n / patch ** 2, c patch ** 2); of one axis patches are as many in a
    row."""
    if patch > 1 and x.ndim == 3:
        return x.unflatten(-1, (-1, patch)).transpose(2, 3).flatten(1, 2).mT
    if patch > 1:
        x = x.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch))  # …, h, p, w, p
        x = x.movedim(-3, 2).movedim(-1, 3).flatten(1, 3)
    return x.flatten(2).mT


def unpatched(rows: Tensor, cells: Sequence[int], patch: int) -> Tensor:
    """`patches` undone, for a grid of so many cells."""
    if patch > 1 and len(cells) == 1:
        return rows.mT.unflatten(1, (-1, patch)).transpose(2, 3).flatten(2)
    x = rows.mT.unflatten(-1, tuple(cells))
    if patch > 1:
        x = x.unflatten(1, (-1, patch, patch)).movedim(3, -1).movedim(2, -3)
        x = x.flatten(-4, -3).flatten(-2)
    return x


def training_times(keys: Tensor, shift: float) -> Tensor:
    """(b,): logit-normal (arXiv 2403.03206), moved towards the noise."""
    return torch.sigmoid(normal(keys, "time", ()) - math.log(shift))


def shifted(share: Tensor, shift: float) -> Tensor:
    """Shares of the way from noise to data (0 to 1), moved towards the noise."""
    return share / (share + shift * (1 - share))

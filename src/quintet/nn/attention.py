"""Transformer blocks along one axis (arXiv 1706.03762), for training and for writing step by step.

Shapes: b samples, n positions, d width, h heads of e channels.

Queries and keys are normalised (arXiv 2010.04245), so that logits stay bounded in bf16, and turned
to their position (RoFormer, arXiv 2104.09864); the feed-forward is SwiGLU (arXiv 2002.05202).
Residual branches end in a layer that starts at zero. A cache has a fixed length and is written at a
position that lives on the device, so that one step is always the same work and can be captured.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.quantise import full_precision
from quintet.nn.rotary import Rotation, line_rotation, rotate_pairs

SHORT = 16
"""Up to so many positions attention is plain matrix products: kernels for long sequences would
spend their time on padding."""


class Cache(NamedTuple):
    """Keys and values (b, h, length, e) of the positions written so far."""

    keys: Tensor
    values: Tensor


class Place(NamedTuple):
    """Where a single step stands."""

    position: Tensor
    """(1,) integer on the device."""
    visible: Tensor
    """(length,) booleans: the part of the cache that is read, and which of it counts."""
    rotation: Rotation | None


class Context(NamedTuple):
    """What a sequence may look at besides itself."""

    values: Tensor
    """(b, n, d)."""
    mask: Tensor
    """(b, n) booleans, true where there is something to look at."""


class Memory(NamedTuple):
    """A context as one layer sees it, computed once."""

    keys: Tensor
    values: Tensor
    mask: Tensor


def place(position: Tensor, length: int, head_dim: int | None, device: torch.device) -> Place:
    """Everything up to and including `position` is visible; no head_dim means no rotation."""
    rotation = None if head_dim is None else line_rotation(position, head_dim)
    return Place(position, torch.arange(length, device=device) <= position, rotation)


def linear(dim: int, dim_out: int) -> nn.Linear:
    return nn.Linear(dim, dim_out, bias=False)


def zeroed(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


def split_heads(rows: Tensor, head_dim: int) -> Tensor:
    """(b, n, h e) -> (b, h, n, e)."""
    return rows.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def join_heads(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def attend_short(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = full_precision(q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return weights.to(v.dtype) @ v


def attend_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    if length > SHORT:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    visible = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    return attend_short(q, k, v, visible)


class UnitHeads(nn.Module):
    """Normalises over a head, with a learned gain, and turns it to its position."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(head_dim))

    def forward(self, heads: Tensor, rotation: Rotation | None) -> Tensor:
        normed = F.rms_norm(full_precision(heads), (heads.shape[-1],)) * self.gain
        turned = normed if rotation is None else rotate_pairs(normed, rotation)
        return turned.to(heads.dtype)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.to_qkv = linear(dim, 3 * heads * head_dim)
        self.unit_q = UnitHeads(head_dim)
        self.unit_k = UnitHeads(head_dim)
        self.to_out = zeroed(linear(heads * head_dim, dim))

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split_heads(part, self.head_dim) for part in self.to_qkv(x).chunk(3, dim=-1))
        return self.unit_q(q, rotation), self.unit_k(k, rotation), v

    def forward(
        self, x: Tensor, rotation: Rotation | None, *, causal: bool, mask: Tensor | None = None
    ) -> Tensor:
        """`mask` (b, n) says which positions may be seen; a causal sequence takes none."""
        q, k, v = self.project(x, rotation)
        if causal:
            return self.to_out(join_heads(attend_causal(q, k, v)))
        seen = None if mask is None else mask[:, None, None, :]
        return self.to_out(join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))

    def step(self, x: Tensor, at: Place, cache: Cache) -> Tensor:
        """One position (b, 1, d); the cache is written first, so a position sees itself."""
        q, k, v = self.project(x, at.rotation)
        cache.keys.index_copy_(2, at.position, k)
        cache.values.index_copy_(2, at.position, v)
        length = at.visible.shape[0]
        keys, values = cache.keys[:, :, :length], cache.values[:, :, :length]
        if length <= SHORT:
            return self.to_out(join_heads(attend_short(q, keys, values, at.visible)))
        seen = at.visible.expand(1, 1, 1, length)
        return self.to_out(join_heads(F.scaled_dot_product_attention(q, keys, values, seen)))

    def cache(self, batch: int, length: int) -> Cache:
        shape = (batch, self.heads, length, self.head_dim)
        return Cache(self.to_qkv.weight.new_zeros(shape), self.to_qkv.weight.new_zeros(shape))


class CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.to_q = linear(dim, heads * head_dim)
        self.to_kv = linear(dim, 2 * heads * head_dim)
        self.unit_q = UnitHeads(head_dim)
        self.unit_k = UnitHeads(head_dim)
        self.to_out = zeroed(linear(heads * head_dim, dim))

    def remember(self, context: Context) -> Memory:
        k, v = (split_heads(p, self.head_dim) for p in self.to_kv(context.values).chunk(2, -1))
        return Memory(self.unit_k(k, None), v, context.mask[:, None, None, :])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        q = self.unit_q(split_heads(self.to_q(x), self.head_dim), None)
        seen = F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=memory.mask)
        return self.to_out(join_heads(seen))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = -(-dim * 8 // 3 // 64) * 64  # as many weights as a plain one of width 4 d
        self.to_hidden = linear(dim, 2 * hidden)
        self.to_out = zeroed(linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.to_hidden(x).chunk(2, dim=-1)
        return self.to_out(value * F.silu(gate))


class Block(nn.Module):
    """Self-attention, cross-attention where asked for, and a feed-forward, each on a branch."""

    def __init__(
        self, dim: int, heads: int, head_dim: int, *, cross: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim)
        self.attention = SelfAttention(dim, heads, head_dim)
        self.cross_norm = nn.RMSNorm(dim) if cross else None
        self.cross = CrossAttention(dim, heads, head_dim) if cross else None
        self.feed_norm = nn.RMSNorm(dim)
        self.feed = FeedForward(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, rotation, causal=causal, mask=mask))
        return self.rest(x, self.remember(context))

    def step(self, x: Tensor, at: Place, cache: Cache, memory: Memory | None = None) -> Tensor:
        return self.rest(x + self.attention.step(self.attention_norm(x), at, cache), memory)

    def remember(self, context: Context | None) -> Memory | None:
        """Keys and values of the context, where this block looks at one."""
        return None if self.cross is None or context is None else self.cross.remember(context)

    def rest(self, x: Tensor, memory: Memory | None) -> Tensor:
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            x = x + self.dropout(self.cross(self.cross_norm(x), memory))
        return x + self.dropout(self.feed(self.feed_norm(x)))

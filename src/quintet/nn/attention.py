"""Transformer blocks over sequences (arXiv 1706.03762), for training and incremental decoding.

Shapes: b samples, n positions, d width, h heads of e channels.

Positions are rotary (RoFormer, arXiv 2104.09864). Residual branches end in a zero-initialised
layer. The KV cache has a fixed length and is written at a position held on the device, so every
decoding step runs the same kernels and can be captured as a CUDA graph.
"""

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn import kernels
from quintet.nn.heads import (
    QKNorm,
    is_fused,
    merge_heads,
    q_heads,
    qkv_heads,
    split_heads,
    swiglu,
)
from quintet.nn.norms import RMSNorm
from quintet.nn.operations import save_inputs, without_compiler
from quintet.nn.packing import Packing
from quintet.nn.precision import full_precision
from quintet.nn.rope import Rope, rope_1d

L = TypeVar("L", bound=nn.Module)
SHORT = 16
"""Sequences up to this length use plain products: fused kernels would mostly compute padding."""
UNROLLED = 12
"""Causal attention up to this length is one kernel each way on CUDA in half precision. Compiling it
takes a time that grows with the square of the length."""


class KVCache(NamedTuple):
    """Keys and values (b, h, length, e) of the positions decoded so far."""

    keys: Tensor
    values: Tensor


class CachePosition(NamedTuple):
    """Position of a single decoding step."""

    position: Tensor
    """(1,) integer on the device."""
    mask: Tensor
    """(length,) booleans over the prefix of the cache that attention reads."""
    rope: Rope | None


class Context(NamedTuple):
    """Input of cross-attention."""

    values: Tensor
    """(b, n, d)."""
    mask: Tensor
    """(b, n) booleans, false in padding."""


class CrossKV(NamedTuple):
    """Keys and values that one layer computes from a context, and the attention mask."""

    keys: Tensor
    values: Tensor
    mask: Tensor


def cache_position(
    position: Tensor, length: int, head_dim: int | None, device: torch.device
) -> CachePosition:
    """Attend to all positions up to and including `position`; head_dim None omits RoPE."""
    rope = None if head_dim is None else rope_1d(position, head_dim)
    return CachePosition(position, torch.arange(length, device=device) <= position, rope)


def linear(dim: int, dim_out: int) -> nn.Linear:
    return nn.Linear(dim, dim_out, bias=False)


def zero_init(layer: L) -> L:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def short_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = full_precision(q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights.to(v.dtype) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    if length > SHORT:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if length <= UNROLLED and is_fused(q) and q.dtype == k.dtype == v.dtype:
        return _short_attention(*(heads.transpose(1, 2) for heads in (q, k, v))).transpose(1, 2)
    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    return short_attention(q, k, v, mask)


@without_compiler
@torch.library.custom_op("quintet::short_attention", mutates_args=())
def _short_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal; (b, n, h, e)."""
    return kernels.lazy("short_attention").forward(q, k, v)


@_short_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@without_compiler
@torch.library.custom_op("quintet::short_attention_backward", mutates_args=())
def _short_attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return kernels.lazy("short_attention").backward(dout.contiguous(), q, k, v)


@_short_attention_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _backward_short(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _short_attention_backward(dout, *ctx.saved_tensors)


_short_attention.register_autograd(_backward_short, setup_context=save_inputs)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.to_qkv = linear(dim, 3 * heads * head_dim)
        self.q_norm = QKNorm(head_dim)
        self.k_norm = QKNorm(head_dim)
        self.to_out = zero_init(linear(heads * head_dim, dim))

    def project(self, x: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
        gains = self.q_norm.gain, self.k_norm.gain
        return qkv_heads(self.to_qkv(x), self.head_dim, rope, *gains)

    def forward(
        self,
        x: Tensor,
        rope: Rope | None,
        *,
        causal: bool,
        mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """`mask` (b, n): padding, ignored if causal. With a `packing`, x is (1, rows, d)."""
        q, k, v = self.project(x, rope)
        if packing is not None:
            q, k, v = (packing.pad_heads(heads) for heads in (q, k, v))
        if causal:
            out = causal_attention(q, k, v)
        else:
            attn_mask = None if mask is None else mask[:, None, None, :]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.to_out(merge_heads(out if packing is None else packing.unpad_heads(out)))

    def step(self, x: Tensor, at: CachePosition, cache: KVCache) -> Tensor:
        """Decode one position (b, 1, d). Updates the cache first: a position attends to itself."""
        q, k, v = self.project(x, at.rope)
        cache.keys.index_copy_(2, at.position, k)
        cache.values.index_copy_(2, at.position, v)
        length = at.mask.shape[0]
        keys, values = cache.keys[:, :, :length], cache.values[:, :, :length]
        if length <= SHORT:
            return self.to_out(merge_heads(short_attention(q, keys, values, at.mask)))
        attn_mask = at.mask.expand(1, 1, 1, length)
        return self.to_out(merge_heads(F.scaled_dot_product_attention(q, keys, values, attn_mask)))

    def kv_cache(self, batch: int, length: int) -> KVCache:
        shape = (batch, self.heads, length, self.head_dim)
        return KVCache(self.to_qkv.weight.new_zeros(shape), self.to_qkv.weight.new_zeros(shape))


class CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.to_q = linear(dim, heads * head_dim)
        self.to_kv = linear(dim, 2 * heads * head_dim)
        self.q_norm = QKNorm(head_dim)
        self.k_norm = QKNorm(head_dim)
        self.to_out = zero_init(linear(heads * head_dim, dim))

    def project_context(self, context: Context) -> CrossKV:
        k, v = (split_heads(p, self.head_dim) for p in self.to_kv(context.values).chunk(2, -1))
        return CrossKV(self.k_norm(k, None), v, context.mask[:, None, None, :])

    def forward(self, x: Tensor, kv: CrossKV, packing: Packing | None = None) -> Tensor:
        q = q_heads(self.to_q(x), self.head_dim, self.q_norm.gain)
        q = q if packing is None else packing.pad_heads(q)
        out = F.scaled_dot_product_attention(q, kv.keys, kv.values, attn_mask=kv.mask)
        return self.to_out(merge_heads(out if packing is None else packing.unpad_heads(out)))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = -(-dim * 8 // 3 // 64) * 64  # parameter count of a plain MLP of width 4 d
        self.to_hidden = linear(dim, 2 * hidden)
        self.to_out = zero_init(linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(swiglu(self.to_hidden(x)))


class Block(nn.Module):
    """Pre-norm residual block: self-attention, optional cross-attention, feed-forward."""

    def __init__(
        self, dim: int, heads: int, head_dim: int, *, cross: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = SelfAttention(dim, heads, head_dim)
        self.cross_norm = RMSNorm(dim) if cross else None
        self.cross = CrossAttention(dim, heads, head_dim) if cross else None
        self.feed_forward_norm = RMSNorm(dim)
        self.feed_forward = FeedForward(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        rope: Rope | None = None,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        context: Context | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        normed = self.attention_norm(x)
        attended = self.attention(normed, rope, causal=causal, mask=mask, packing=packing)
        return self.after_attention(x + self.dropout(attended), self.cross_kv(context), packing)

    def step(
        self, x: Tensor, at: CachePosition, cache: KVCache, cross_kv: CrossKV | None = None
    ) -> Tensor:
        x = x + self.attention.step(self.attention_norm(x), at, cache)
        return self.after_attention(x, cross_kv)

    def cross_kv(self, context: Context | None) -> CrossKV | None:
        """Keys and values of the context, if this block has cross-attention."""
        if self.cross is None or context is None:
            return None
        return self.cross.project_context(context)

    def after_attention(
        self, x: Tensor, cross_kv: CrossKV | None, packing: Packing | None = None
    ) -> Tensor:
        if self.cross is not None and self.cross_norm is not None and cross_kv is not None:
            x = x + self.dropout(self.cross(self.cross_norm(x), cross_kv, packing))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

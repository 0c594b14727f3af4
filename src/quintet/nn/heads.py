"""Heads of attention, and the gated activation of a feed-forward, in few passes.

QK-norm (arXiv 2010.04245) bounds the attention logits in bf16; SwiGLU and GEGLU are arXiv
2002.05202. Around the matrix products of a transformer heads and gates take a tenth of a step, if
the compiler writes them: on CUDA in half precision they are one kernel each way, in steps that are
compiled and that are not.

Shapes: b samples, n positions, h heads of e channels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn import kernels
from quintet.nn.operations import save_inputs, without_compiler
from quintet.nn.precision import full_precision
from quintet.nn.rope import Rope, apply_rope


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(b, n, h e) -> (b, h, n, e)."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def norm_heads(heads: Tensor, gain: Tensor | None, rope: Rope | None) -> Tensor:
    """RMS norm of each query or key head (..., n, e), then RoPE."""
    normed = F.rms_norm(full_precision(heads), (heads.shape[-1],))
    normed = normed if gain is None else normed * gain
    rotated = normed if rope is None else apply_rope(normed, rope)
    return rotated.to(heads.dtype)


class QKNorm(nn.Module):
    """`norm_heads` with a learned gain."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(head_dim))

    def forward(self, heads: Tensor, rope: Rope | None) -> Tensor:
        return norm_heads(heads, self.gain, rope)


def qkv_heads(
    qkv: Tensor,
    head_dim: int,
    rope: Rope | None,
    q_gain: Tensor | None = None,
    k_gain: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(b, n, 3 h e) -> queries and keys, normed and rotated, and values: (b, h, n, e) each."""
    if is_fused(qkv) and head_dim % 2 == 0:
        cos, sin = (None, None) if rope is None else (part.contiguous() for part in rope)
        ones = qkv.new_ones(head_dim, dtype=torch.float32)
        gains = (ones if gain is None else gain for gain in (q_gain, k_gain))
        q, k, v = _qkv_heads(qkv.contiguous(), *gains, cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    q, k, v = (split_heads(part, head_dim) for part in qkv.chunk(3, dim=-1))
    return norm_heads(q, q_gain, rope), norm_heads(k, k_gain, rope), v


def q_heads(x: Tensor, head_dim: int, gain: Tensor) -> Tensor:
    """(b, n, h e) -> queries of cross-attention (b, h, n, e), normed."""
    if is_fused(x) and head_dim % 2 == 0:
        return _q_heads(x.contiguous(), gain).transpose(1, 2)
    return norm_heads(split_heads(x, head_dim), gain, None)


def swiglu(x: Tensor) -> Tensor:
    """(..., 2 f) values and gates -> (..., f)."""
    if is_fused(x):
        return _gated(x.contiguous(), "swiglu")
    value, gate = x.chunk(2, dim=-1)
    return value * F.silu(gate)


def geglu(x: Tensor) -> Tensor:
    """(..., 2 f) gates and values -> (..., f)."""
    if is_fused(x):
        return _gated(x.contiguous(), "geglu")
    gate, value = x.chunk(2, dim=-1)
    return F.gelu(gate) * value


def is_fused(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and kernels.fits(x)


@without_compiler
@torch.library.custom_op("quintet::qkv_heads", mutates_args=())
def _qkv_heads(
    qkv: Tensor, q_gain: Tensor, k_gain: Tensor, cos: Tensor | None, sin: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (b, n, h, e)."""
    return kernels.lazy("heads").forward(qkv, q_gain, k_gain, cos, sin)


@_qkv_heads.register_fake
def _(
    qkv: Tensor, q_gain: Tensor, k_gain: Tensor, cos: Tensor | None, sin: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    width = len(q_gain)
    shape = (*qkv.shape[:2], qkv.shape[2] // (3 * width), width)
    return qkv.new_empty(shape), qkv.new_empty(shape), qkv.new_empty(shape)


@without_compiler
@torch.library.custom_op("quintet::qkv_heads_backward", mutates_args=())
def _qkv_heads_backward(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    qkv: Tensor,
    q_gain: Tensor,
    k_gain: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gradients of qkv and, in fp32, (2, e) of the gains."""
    return kernels.lazy("heads").backward(dq, dk, dv, qkv, q_gain, k_gain, cos, sin)


@_qkv_heads_backward.register_fake
def _(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, q_gain: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), qkv.new_empty(2, len(q_gain), dtype=torch.float32)


def _backward_heads(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    dqkv, d_gains = _qkv_heads_backward(*grads, *saved)
    return dqkv, d_gains[0].to(saved[1].dtype), d_gains[1].to(saved[2].dtype), None, None


_qkv_heads.register_autograd(_backward_heads, setup_context=save_inputs)


@without_compiler
@torch.library.custom_op("quintet::q_heads", mutates_args=())
def _q_heads(x: Tensor, gain: Tensor) -> Tensor:
    """Queries (b, n, h, e)."""
    return kernels.lazy("heads").forward_queries(x, gain)


@_q_heads.register_fake
def _(x: Tensor, gain: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:2], x.shape[2] // len(gain), len(gain))


@without_compiler
@torch.library.custom_op("quintet::q_heads_backward", mutates_args=())
def _q_heads_backward(dq: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and, in fp32, of the gain."""
    return kernels.lazy("heads").backward_queries(dq, x, gain)


@_q_heads_backward.register_fake
def _(dq: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), gain.new_empty(gain.shape, dtype=torch.float32)


def _backward_queries(ctx: Any, dq: Tensor) -> tuple[Tensor, Tensor]:
    x, gain = ctx.saved_tensors
    dx, d_gain = _q_heads_backward(dq, x, gain)
    return dx, d_gain.to(gain.dtype)


_q_heads.register_autograd(_backward_queries, setup_context=save_inputs)


@without_compiler
@torch.library.custom_op("quintet::gated", mutates_args=())
def _gated(x: Tensor, kind: str) -> Tensor:
    return kernels.lazy("gated").forward(x, kind)


@_gated.register_fake
def _(x: Tensor, kind: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@without_compiler
@torch.library.custom_op("quintet::gated_backward", mutates_args=())
def _gated_backward(dy: Tensor, x: Tensor, kind: str) -> Tensor:
    return kernels.lazy("gated").backward(dy.contiguous(), x, kind)


@_gated_backward.register_fake
def _(dy: Tensor, x: Tensor, kind: str) -> Tensor:
    return torch.empty_like(x)


def _setup_gated(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.kind = inputs
    ctx.save_for_backward(x)


def _backward_gated(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    return _gated_backward(dy, *ctx.saved_tensors, ctx.kind), None


_gated.register_autograd(_backward_gated, setup_context=_setup_gated)

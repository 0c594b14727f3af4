"""Transformer blocks for one position of every row: few launches, each with all that fits.

    linear          [RMS norm of x], product, [SwiGLU, SiLU or residual]
    self_attention  QK norm, RoPE, write to the KV cache, attention to all positions so far
    cross_attention QK norm, attention to a context

A product of a few rows waits for its weights, so tiles are narrow: many programs read at once.
A row's result does not depend on the other rows, nor on their number. The gain of a norm is
folded into the weights; what is left of it, a factor per row, is computed while x is read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.attention import CrossKV, KVCache
from quintet.nn.kernels import launch, power_of_two
from quintet.nn.rope import Rope

EPILOGUES = {"none": 0, "residual": 1, "silu": 2, "swiglu": 3}
EPS = torch.finfo(torch.float32).eps
"""That of `torch.nn.functional.rms_norm` in fp32 and in bf16."""
POSITIONS = 64
"""Positions of a cache read at a time."""


@triton.jit(do_not_specialize=["M"])
def _linear_kernel(
    x, weight, out, M, N, K, eps, NORM: tl.constexpr, EPILOGUE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out (m, n) from x (m, k) and weight (n, k); SwiGLU: weight (2 n, k), values before gates."""
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    x += rows[:, None] * K + k[None, :]
    weight += columns[None, :] * K + k[:, None]
    total = tl.zeros([BM, BN], tl.float32)
    gate = tl.zeros([BM, BN], tl.float32)
    squares = tl.zeros([BM, BK], tl.float32)
    for start in range(0, K, BK):
        known = k < K - start
        a = tl.load(x + start, mask=(rows < M)[:, None] & known[None, :], other=0.0)
        inside = (columns < N)[None, :] & known[:, None]
        b = tl.load(weight + start, mask=inside, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        if EPILOGUE == 3:
            c = tl.load(weight + N * K + start, mask=inside, other=0.0)
            gate = tl.dot(a, c, gate, input_precision="ieee")
        if NORM:
            wide = a.to(tl.float32)
            squares += wide * wide
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, 1) / K + eps)[:, None]
        total *= factor
        gate *= factor
    if EPILOGUE == 3:
        total *= gate * tl.sigmoid(gate)
    if EPILOGUE == 2:
        total *= tl.sigmoid(total)
    at = out + rows[:, None] * N + columns[None, :]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    if EPILOGUE == 1:
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


def linear(
    x: Tensor, weight: Tensor, out: Tensor, *, norm: bool = False, epilogue: str = "none"
) -> Tensor:
    """x (m, k) times weight (n, k), into `out` (m, n); "residual" adds what stands there."""
    (m, k), n = x.shape, out.shape[1]
    rows, columns, depth, stages = (16, 16, 64, 3) if x.element_size() == 4 else (32, 16, 128, 5)
    if m > 64:
        columns, stages = 64, 3  # enough programs: read x less often
    elif n > 2048:
        columns, stages = 32, 3
    grid = (triton.cdiv(n, columns), triton.cdiv(m, rows))
    launch(
        _linear_kernel, grid,
        x, weight, out, m, n, k, EPS, NORM=norm, EPILOGUE=EPILOGUES[epilogue],
        BM=rows, BN=columns, BK=depth, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit
def _load_halves(x, d, inside):
    """A head of 2 `inside` channels; channel i is rotated with channel i + `inside`."""
    first = tl.load(x + d, mask=d < inside, other=0.0).to(tl.float32)
    return first, tl.load(x + inside + d, mask=d < inside, other=0.0).to(tl.float32)


@triton.jit
def _normed_head(x, gain, d, half, eps):
    """RMS norm of a head, as `QKNorm`."""
    first, second = _load_halves(x, d, half)
    squares = tl.sum(first * first, 0) + tl.sum(second * second, 0)
    factor = tl.rsqrt(squares / (2 * half) + eps)
    gain1, gain2 = _load_halves(gain, d, half)
    return first * factor * gain1, second * factor * gain2


@triton.jit
def _attend(
    q1, q2, keys, values, visible, length, d, half, scale, own, own1, own2,
    MASKED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attention to `length` positions, and to one more of score `own` and value own1, own2.

    Each of `BLOCK` lanes has a softmax of its own; they are merged at the end. A score of -1e30 has
    no weight.
    """
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    out1 = tl.zeros([BLOCK, d.shape[0]], tl.float32)
    out2 = tl.zeros([BLOCK, d.shape[0]], tl.float32)
    for start in tl.range(0, length, BLOCK, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK)
        known = position < length
        at = position[:, None] * (2 * half) + d[None, :]
        inside = known[:, None] & (d < half)[None, :]
        k1 = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
        k2 = tl.load(keys + at + half, mask=inside, other=0.0).to(tl.float32)
        v1 = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        v2 = tl.load(values + at + half, mask=inside, other=0.0).to(tl.float32)
        if MASKED:
            known = known & (tl.load(visible + position, mask=known, other=0) != 0)
        scores = tl.sum(k1 * q1[None, :] + k2 * q2[None, :], 1) * scale
        before = most
        most = tl.maximum(before, tl.where(known, scores, -1e30))
        weights = tl.where(known, tl.exp(scores - most), 0.0)
        decay = tl.exp(before - most)
        total = total * decay + weights
        out1 = out1 * decay[:, None] + weights[:, None] * v1
        out2 = out2 * decay[:, None] + weights[:, None] * v2
    top = tl.maximum(own, tl.max(most, 0))
    factor = tl.exp(most - top)
    own_weight = tl.exp(own - top)
    norm = tl.sum(total * factor, 0) + own_weight
    out1 = tl.sum(out1 * factor[:, None], 0) + own_weight * own1
    out2 = tl.sum(out2 * factor[:, None], 0) + own_weight * own2
    return out1 / norm, out2 / norm


@triton.jit(do_not_specialize=["count"])
def _self_attention_kernel(
    qkv, gains, keys, values, out, position, cos, sin, ended, count, heads, capacity, half, scale,
    eps, ROPE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per row and head."""
    row, head = tl.program_id(0), tl.program_id(1)
    width = heads * 2 * half
    d = tl.arange(0, HALF)
    here = tl.load(position).to(tl.int32)
    qkv += row * 3 * width + head * 2 * half
    q1, q2 = _normed_head(qkv, gains, d, half, eps)
    k1, k2 = _normed_head(qkv + width, gains + 2 * half, d, half, eps)
    v1, v2 = _load_halves(qkv + 2 * width, d, half)
    if ROPE:
        c = tl.load(cos + here * half + d, mask=d < half, other=0.0)
        s = tl.load(sin + here * half + d, mask=d < half, other=0.0)
        q1, q2 = q1 * c - q2 * s, q2 * c + q1 * s
        k1, k2 = k1 * c - k2 * s, k2 * c + k1 * s
    # Rounded as the cache is.
    kind = keys.dtype.element_ty
    q1, q2 = q1.to(kind).to(tl.float32), q2.to(kind).to(tl.float32)
    k1, k2 = k1.to(kind), k2.to(kind)
    offset = (row * heads + head).to(tl.int64) * capacity * 2 * half
    keys += offset
    values += offset
    at = here * 2 * half + d
    tl.store(keys + at, k1, mask=d < half)
    tl.store(keys + at + half, k2, mask=d < half)
    tl.store(values + at, v1.to(kind), mask=d < half)
    tl.store(values + at + half, v2.to(kind), mask=d < half)
    own = (tl.sum(k1.to(tl.float32) * q1, 0) + tl.sum(k2.to(tl.float32) * q2, 0)) * scale
    # What an ended mesh attends to is of no consequence: do not read its cache.
    length = tl.where(tl.load(ended + row % count) != 0, 0, here)
    out1, out2 = _attend(
        q1, q2, keys, values, ended, length, d, half, scale, own, v1, v2,
        MASKED=False, BLOCK=BLOCK, STAGES=STAGES,
    )  # fmt: skip
    out += row * width + head * 2 * half + d
    tl.store(out, out1.to(kind), mask=d < half)
    tl.store(out + half, out2.to(kind), mask=d < half)


def self_attention(
    qkv: Tensor,
    gains: Tensor,
    cache: KVCache,
    position: Tensor,
    rope: Rope | None,
    ended: Tensor,
    out: Tensor,
) -> Tensor:
    """As `SelfAttention.step` between its products: qkv (b, 3 h e) to out (b, h e).

    gains (2, e) of queries and keys; `rope` of all positions of the cache; `ended` (n,) flags rows
    i, n + i, ... whose result is not used.
    """
    rows, heads, capacity, head_dim = cache.keys.shape
    half = head_dim // 2
    cos, sin = (gains, gains) if rope is None else rope
    launch(
        _self_attention_kernel, (rows, heads),
        qkv, gains, cache.keys, cache.values, out, position, cos, sin, ended, len(ended), heads,
        capacity, half, head_dim**-0.5, EPS, ROPE=rope is not None, HALF=power_of_two(half),
        **_blocks(capacity),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["capacity"])
def _cross_attention_kernel(
    q, gain, keys, values, visible, lengths, out, heads, capacity, half, scale, eps,
    HALF: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HALF)
    offset = (row * heads + head) * 2 * half
    q1, q2 = _normed_head(q + offset, gain, d, half, eps)
    kind = keys.dtype.element_ty
    q1, q2 = q1.to(kind).to(tl.float32), q2.to(kind).to(tl.float32)
    cached = offset.to(tl.int64) * capacity
    nothing = tl.zeros([HALF], tl.float32)
    out1, out2 = _attend(
        q1, q2, keys + cached, values + cached, visible + row * capacity, tl.load(lengths + row),
        d, half, scale, tl.full([], -1e30, tl.float32), nothing, nothing,
        MASKED=True, BLOCK=BLOCK, STAGES=STAGES,
    )  # fmt: skip
    tl.store(out + offset + d, out1.to(kind), mask=d < half)
    tl.store(out + offset + half + d, out2.to(kind), mask=d < half)


def cross_attention(q: Tensor, gain: Tensor, kv: CrossKV, lengths: Tensor, out: Tensor) -> Tensor:
    """As `CrossAttention.forward` between its products: q (b, h e) to out (b, h e).

    kv.mask (b, n) int8; positions from `lengths` (b,) on are not read. Something is visible in
    every row.
    """
    rows, heads, capacity, head_dim = kv.keys.shape
    half = head_dim // 2
    launch(
        _cross_attention_kernel, (rows, heads),
        q, gain, kv.keys, kv.values, kv.mask, lengths, out, heads, capacity, half, head_dim**-0.5,
        EPS, HALF=power_of_two(half), **_blocks(capacity),
    )  # fmt: skip
    return out


def _blocks(capacity: int) -> dict[str, int]:
    """How attention reads a cache of this length."""
    block = min(POSITIONS, power_of_two(capacity, 16))
    return {
        "BLOCK": block,
        "STAGES": 3 if capacity > block else 1,
        "num_warps": max(1, block // 16),
    }

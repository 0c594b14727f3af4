"""Causal self-attention over a few positions: one kernel each way.

q, k and v (b, n, h, e) are read once, by their strides, and stay in registers: tensor cores would
mostly multiply padding. A program takes a block of pairs of a sample and a head, and all their
positions, which are unrolled. The backward pass computes the weights again, and writes gradients in
(b, n, h, e) memory. Weights are in fp32, and rounded before their product with the values.
"""

# ruff: noqa: RUF005 (Triton concatenates tuples of blocks, and does not unpack them)

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import compile_first, launch, power_of_two

WARPS = 4
PLAIN = ["pairs", "H"]
"""Not strides: that they are multiples of 16 lets a thread load several values at a time."""


@triton.jit
def _block(pairs, H, E: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr):
    """Samples, heads and columns of a block, and what is inside."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    columns = tl.arange(0, WIDTH)
    inside = (pair < pairs)[:, None] & (columns < E)[None, :]
    return (pair // H).to(tl.int64)[:, None], (pair % H)[:, None], columns[None, :], inside


@triton.jit
def _load(x, at, stride, inside, N: tl.constexpr):
    """One block for each position."""
    blocks = ()
    for i in tl.static_range(N):
        blocks = blocks + (tl.load(x + at + i * stride, mask=inside, other=0.0),)
    return blocks


@triton.jit
def _products(x, blocks, N: tl.constexpr):
    """The product of x with each of the first N blocks, over columns."""
    products = ()
    for j in tl.static_range(N):
        products = products + (tl.sum(x * blocks[j].to(tl.float32), 1)[:, None],)
    return products


@triton.jit
def _softmax(scores, N: tl.constexpr):
    largest = scores[0]
    for j in tl.static_range(1, N):
        largest = tl.maximum(largest, scores[j])
    total = tl.exp(scores[0] - largest)
    powers = (total,)
    for j in tl.static_range(1, N):
        power = tl.exp(scores[j] - largest)
        powers = powers + (power,)
        total += power
    weights = ()
    for j in tl.static_range(N):
        weights = weights + (powers[j] / total,)
    return weights


@triton.jit
def _weighted(weights, blocks, N: tl.constexpr):
    """The sum of the first N blocks."""
    total = weights[0] * blocks[0].to(tl.float32)
    for j in tl.static_range(1, N):
        total += weights[j] * blocks[j].to(tl.float32)
    return total


@triton.jit
def _added(totals, weights, x, N: tl.constexpr):
    """x added to N totals, the last of which is new."""
    sums = ()
    for j in tl.static_range(N - 1):
        sums = sums + (totals[j] + weights[j] * x,)
    return sums + (weights[N - 1] * x,)


@triton.jit
def _rounded(values, like, N: tl.constexpr):
    rounded = ()
    for j in tl.static_range(N):
        rounded = rounded + (values[j].to(like.dtype).to(tl.float32),)
    return rounded


@triton.jit(do_not_specialize=PLAIN)
def _forward_kernel(
    q, k, v, out, pairs, H, scale, sample_stride, position_stride, head_stride,
    N: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    sample, head, columns, inside = _block(pairs, H, E, WIDTH, PAIRS)
    at = sample * sample_stride + head * head_stride + columns
    keys = _load(k, at, position_stride, inside, N)
    values = _load(v, at, position_stride, inside, N)
    queries = _load(q, at, position_stride, inside, N)
    for i in tl.static_range(N):
        scores = _products(queries[i].to(tl.float32) * scale, keys, i + 1)
        weights = _rounded(_softmax(scores, i + 1), values[0], i + 1)
        to = ((sample * N + i) * H + head) * E + columns
        result = _weighted(weights, values, i + 1)
        tl.store(out + to, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def _backward_kernel(
    dout, q, k, v, dq, dk, dv, pairs, H, scale, sample_stride, position_stride, head_stride,
    N: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dout, dq, dk and dv are contiguous."""
    sample, head, columns, inside = _block(pairs, H, E, WIDTH, PAIRS)
    at = sample * sample_stride + head * head_stride + columns
    to = (sample * N * H + head) * E + columns
    keys = _load(k, at, position_stride, inside, N)
    values = _load(v, at, position_stride, inside, N)
    queries = _load(q, at, position_stride, inside, N)
    slopes = _load(dout, to, H * E, inside, N)
    d_keys = ()
    d_values = ()
    for i in tl.static_range(N):
        query, slope = queries[i].to(tl.float32) * scale, slopes[i].to(tl.float32)
        weights = _softmax(_products(query, keys, i + 1), i + 1)
        d_weights = _products(slope, values, i + 1)
        d_values = _added(d_values, _rounded(weights, values[0], i + 1), slope, i + 1)
        mean = _weighted(weights, d_weights, i + 1)
        d_scores = ()
        for j in tl.static_range(i + 1):
            d_scores = d_scores + (weights[j] * (d_weights[j] - mean),)
        d_keys = _added(d_keys, d_scores, query, i + 1)
        d_query = _weighted(d_scores, keys, i + 1) * scale
        tl.store(dq + to + i * H * E, d_query.to(dq.dtype.element_ty), mask=inside)
    for j in tl.static_range(N):
        tl.store(dk + to + j * H * E, d_keys[j].to(dk.dtype.element_ty), mask=inside)
        tl.store(dv + to + j * H * E, d_values[j].to(dv.dtype.element_ty), mask=inside)


def plan(q: Tensor) -> tuple[tuple[int], tuple[int | float, ...], dict[str, int]]:
    """Grid, numbers and constants. A thread holds fewer columns where there are more positions."""
    b, n, heads, head_dim = q.shape
    elements = 8 if n <= 3 else 4 if n <= 8 else 2
    width = power_of_two(head_dim)
    block = max(1, WARPS * 32 * elements // width)
    constants = {"N": n, "E": head_dim, "WIDTH": width, "PAIRS": block, "num_warps": WARPS}
    numbers = (b * heads, heads, head_dim**-0.5, *q.stride()[:3])
    return (triton.cdiv(b * heads, block),), numbers, constants


def alike(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In memory with the same strides. Offsets within a sample are 32-bit."""
    near = all(stride * size < 2**31 for stride, size in zip(q.stride()[1:], q.shape[1:]))
    if near and q.stride() == k.stride() == v.stride() and q.stride(-1) == 1:
        return q, k, v
    return q.contiguous(), k.contiguous(), v.contiguous()


def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = alike(q, k, v)
    key = ("short_attention", q.device, q.dtype, q.shape[1], q.shape[3])
    compile_first(key, lambda: backward(forward(q, k, v), q, k, v))
    grid, numbers, constants = plan(q)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    launch(_forward_kernel, grid, q, k, v, out, *numbers, **constants)
    return out


def backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = alike(q, k, v)
    grid, numbers, constants = plan(q)
    dq, dk, dv = (torch.empty_like(q, memory_format=torch.contiguous_format) for _ in range(3))
    launch(_backward_kernel, grid, dout, q, k, v, dq, dk, dv, *numbers, **constants)
    return dq, dk, dv

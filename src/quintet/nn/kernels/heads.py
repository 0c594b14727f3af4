"""Queries, keys and values of self-attention from their joint projection: one kernel each way.

x (rows, 3, h, e) are positions; queries and keys are normed over e, scaled by a gain and rotated,
values are copied. Queries alone (rows, 1, h, e) are those of cross-attention. A program takes one
head and a chunk of rows. The backward pass takes gradients
in any memory, and writes that of x whole, where that of three slices would be joined by another
pass. Sums for the gradients of the gains are added up in a fixed order, without atomics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import compile_first, launch, power_of_two
from quintet.nn.kernels.norm_act import PROGRAMS

ROWS = 64
EPS = torch.finfo(torch.float32).eps
PLAIN = ["P", "H", "length", "period", "positions"]
"""Not strides: that they are multiples of 16 lets a thread load 16 bytes at a time."""


@triton.jit
def _load_pair(x, at, inside, E: tl.constexpr):
    """The two halves of heads, which rotate together."""
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + E // 2, mask=inside, other=0.0).to(tl.float32)
    return a, b


@triton.jit
def _store_pair(x, at, inside, a, b, E: tl.constexpr):
    tl.store(x + at, a.to(x.dtype.element_ty), mask=inside)
    tl.store(x + at + E // 2, b.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _load_gain(q_gain, k_gain, part, columns, E: tl.constexpr):
    inside = columns < E // 2
    if part == 0:
        a, b = _load_pair(q_gain, columns, inside, E)
    else:
        a, b = _load_pair(k_gain, columns, inside, E)
    return a[None, :], b[None, :]


@triton.jit
def _rotate(a, b, cos, sin, rows, period, columns, inside, sign, E: tl.constexpr):
    at = (rows % period)[:, None] * (E // 2) + columns[None, :]
    c = tl.load(cos + at, mask=inside, other=0.0)
    s = tl.load(sin + at, mask=inside, other=0.0) * sign
    return a * c - b * s, b * c + a * s


@triton.jit
def _rstd(a, b, eps, E: tl.constexpr):
    return (1.0 / tl.sqrt(tl.sum(a * a + b * b, 1) / E + eps))[:, None]


@triton.jit(do_not_specialize=PLAIN)
def _forward_kernel(
    x, q, k, v, q_gain, k_gain, cos, sin, P, H, length, period, eps,
    E: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    chunk, index = tl.program_id(0), tl.program_id(1)
    part, head = index // H, index % H
    columns = tl.arange(0, HALF)
    gain_a, gain_b = _load_gain(q_gain, k_gain, part, columns, E)
    last = tl.minimum((chunk + 1) * length, P)
    for start in range(chunk * length, last, ROWS):
        rows = start + tl.arange(0, ROWS).to(tl.int64)
        inside = (rows < last)[:, None] & (columns < E // 2)[None, :]
        to = (rows * tl.num_programs(1) + index)[:, None] * E + columns[None, :]
        a, b = _load_pair(x, to, inside, E)
        at = (rows * H + head)[:, None] * E + columns[None, :]
        if part == 2:
            _store_pair(v, at, inside, a, b, E)
        else:
            rstd = _rstd(a, b, eps, E)
            a, b = a * rstd * gain_a, b * rstd * gain_b
            if ROTATES:
                a, b = _rotate(a, b, cos, sin, rows, period, columns, inside, 1.0, E)
            if part == 0:
                _store_pair(q, at, inside, a, b, E)
            else:
                _store_pair(k, at, inside, a, b, E)


@triton.jit(do_not_specialize=PLAIN)
def _backward_kernel(
    dq, dk, dv, x, dx, sums, q_gain, k_gain, cos, sin, P, H, length, period, eps,
    positions, sample_stride, position_stride, head_stride,
    E: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    """dx, and sums (chunks, 2, h, e) for the gains. Strides are of dq, dk and dv (b, n, h, e)."""
    chunk, index = tl.program_id(0), tl.program_id(1)
    part, head = index // H, index % H
    columns = tl.arange(0, HALF)
    gain_a, gain_b = _load_gain(q_gain, k_gain, part, columns, E)
    last = tl.minimum((chunk + 1) * length, P)
    total_a = tl.zeros([ROWS, HALF], tl.float32)
    total_b = tl.zeros([ROWS, HALF], tl.float32)
    for start in range(chunk * length, last, ROWS):
        row = start + tl.arange(0, ROWS)
        rows = row.to(tl.int64)
        inside = (rows < last)[:, None] & (columns < E // 2)[None, :]
        sample, position = (row // positions).to(tl.int64), (row % positions).to(tl.int64)
        at = sample * sample_stride + position * position_stride + head.to(tl.int64) * head_stride
        at = at[:, None] + columns[None, :]
        to = (rows * tl.num_programs(1) + index)[:, None] * E + columns[None, :]
        if part == 2:
            a, b = _load_pair(dv, at, inside, E)
            _store_pair(dx, to, inside, a, b, E)
        else:
            if part == 0:
                a, b = _load_pair(dq, at, inside, E)
            else:
                a, b = _load_pair(dk, at, inside, E)
            if ROTATES:
                a, b = _rotate(a, b, cos, sin, rows, period, columns, inside, -1.0, E)
            x_a, x_b = _load_pair(x, to, inside, E)
            rstd = _rstd(x_a, x_b, eps, E)
            x_a, x_b = x_a * rstd, x_b * rstd
            total_a += a * x_a
            total_b += b * x_b
            a, b = a * gain_a, b * gain_b
            mean = (tl.sum(a * x_a + b * x_b, 1) / E)[:, None]
            _store_pair(dx, to, inside, (a - x_a * mean) * rstd, (b - x_b * mean) * rstd, E)
    if part < 2:
        at = (chunk * 2 * H + index) * E + columns
        _store_pair(sums, at, columns < E // 2, tl.sum(total_a, 0), tl.sum(total_b, 0), E)


Plan = tuple[tuple[int, int], int, tuple[int | float, ...], dict[str, int]]


def plan(x: Tensor, head_dim: int, cos: Tensor | None, parts: int = 3) -> Plan:
    """Grid (chunks of rows; heads of all parts), heads, numbers and constants."""
    heads = x.shape[-1] // (parts * head_dim)
    rows = x.numel() // x.shape[-1]
    chunks = max(1, min(triton.cdiv(PROGRAMS, parts * heads), triton.cdiv(rows, ROWS)))
    length = triton.cdiv(triton.cdiv(rows, chunks), ROWS) * ROWS
    period = 1 if cos is None else cos.numel() // cos.shape[-1]
    constants = {"E": head_dim, "HALF": power_of_two(head_dim // 2), "ROWS": ROWS}
    constants["ROTATES"] = cos is not None
    grid = (triton.cdiv(rows, length), parts * heads)
    return grid, heads, (rows, heads, length, period, EPS), constants


def forward(
    qkv: Tensor, q_gain: Tensor, k_gain: Tensor, cos: Tensor | None, sin: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv (b, n, 3 h e), of which cos and sin rotate (n, e / 2) or (b n, e / 2) positions; queries,
    keys and values (b, n, h, e)."""

    def rehearse() -> None:
        q, k, v = forward(qkv, q_gain, k_gain, cos, sin)
        backward(q, k, v, qkv, q_gain, k_gain, cos, sin)

    head_dim = len(q_gain)
    dtypes = qkv.dtype, q_gain.dtype, cos is None
    compile_first(("heads", qkv.device, head_dim, dtypes), rehearse)
    grid, heads, numbers, constants = plan(qkv, head_dim, cos)
    shape = (*qkv.shape[:2], heads, head_dim)
    q, k, v = (qkv.new_empty(shape) for _ in range(3))
    rotation = (q_gain, q_gain) if cos is None else (cos, sin)
    launch(
        _forward_kernel, grid, qkv, q, k, v, q_gain, k_gain, *rotation, *numbers, **constants
    )  # fmt: skip
    return q, k, v


def backward(
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
    if not dq.stride() == dk.stride() == dv.stride() or dq.stride(-1) != 1:
        dq, dk, dv = dq.contiguous(), dk.contiguous(), dv.contiguous()
    head_dim = len(q_gain)
    grid, heads, numbers, constants = plan(qkv, head_dim, cos)
    dqkv = torch.empty_like(qkv)
    sums = qkv.new_empty(grid[0], 2, heads, head_dim, dtype=torch.float32)
    rotation = (q_gain, q_gain) if cos is None else (cos, sin)
    launch(
        _backward_kernel, grid, dq, dk, dv, qkv, dqkv, sums, q_gain, k_gain, *rotation, *numbers,
        qkv.shape[1], *dq.stride()[:3], **constants,
    )  # fmt: skip
    return dqkv, sums.sum((0, 2))


def forward_queries(x: Tensor, gain: Tensor) -> Tensor:
    """x (b, n, h e) -> queries (b, n, h, e), normed."""

    def rehearse() -> None:
        backward_queries(forward_queries(x, gain), x, gain)

    compile_first(("queries", x.device, len(gain), x.dtype, gain.dtype), rehearse)
    grid, heads, numbers, constants = plan(x, len(gain), None, parts=1)
    q = x.new_empty(*x.shape[:2], heads, len(gain))
    launch(_forward_kernel, grid, x, q, q, q, *[gain] * 4, *numbers, **constants)
    return q


def backward_queries(dq: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and, in fp32, of the gain."""
    dq = dq if dq.stride(-1) == 1 else dq.contiguous()
    grid, heads, numbers, constants = plan(x, len(gain), None, parts=1)
    dx = torch.empty_like(x)
    sums = x.new_empty(grid[0], 2, heads, len(gain), dtype=torch.float32)
    launch(
        _backward_kernel, grid, dq, dq, dq, x, dx, sums, *[gain] * 4, *numbers,
        x.shape[1], *dq.stride()[:3], **constants,
    )  # fmt: skip
    return dx, sums[:, 0].sum((0, 1))

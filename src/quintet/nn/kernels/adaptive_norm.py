"""Adaptive norm in one pass each way: x (b, n, d); gate, shift and scale (b, 1, d), which may be
rows of a larger tensor.

Forward reads x and the branch, and writes their sum and its norm. Backward reads the sum, the
branch and two gradients, and writes two. The gradients of gate, shift and scale are added up over
chunks of positions in a fixed order, without atomics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import compile_first, launch, power_of_two
from quintet.nn.kernels.norm_act import PROGRAMS

ELEMENTS, ELEMENTS_BACKWARD = 4096, 2048
"""Elements of a program at a time."""
PLAIN = ["P", "N", "length", "of_gate", "of_shift", "of_scale"]
EPS = tl.constexpr(torch.finfo(torch.float32).eps)


@triton.jit
def _load(x, at, inside):
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(y, at, values, inside):
    tl.store(y + at, values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _normed(values, D):
    """Rows, and the reciprocals of their lengths."""
    scale = tl.rsqrt(tl.sum(values * values, 1) / D + EPS)[:, None]
    return values * scale, scale


@triton.jit(do_not_specialize=PLAIN)
def _forward_kernel(
    x, branch, gate, shift, scale, total, normed, P, N, D, of_gate, of_shift, of_scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """`of_gate` and the like: elements from a sample to the next."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    columns = tl.arange(0, COLUMNS)[None, :]
    inside = (rows < P)[:, None] & (columns < D)
    at, sample = rows[:, None] * D + columns, (rows // N)[:, None]
    values = _load(x, at, inside)
    if ADDS:
        values += _load(gate, sample * of_gate + columns, inside) * _load(branch, at, inside)
        _store(total, at, values, inside)
        values = values.to(total.dtype.element_ty).to(tl.float32)  # what backward will read
    rescaled, _ = _normed(values, D)
    scaled = rescaled * (1 + _load(scale, sample * of_scale + columns, inside))
    _store(normed, at, scaled + _load(shift, sample * of_shift + columns, inside), inside)


@triton.jit(do_not_specialize=PLAIN)
def _backward_kernel(
    d_total, d_normed, total, branch, gate, scale, dx, d_branch, sums, N, D, length,
    of_gate, of_scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """`sums` (b, chunks, 3, d): gradients of gate, shift and scale."""
    sample, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, COLUMNS)
    within = columns < D
    factor = 1 + _load(scale, sample * of_scale + columns, within)[None, :]
    gates = _load(gate, sample * of_gate + columns, within)[None, :]
    of_gates = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_shifts = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_scales = tl.zeros([ROWS, COLUMNS], tl.float32)
    last = tl.minimum((chunk + 1) * length, N)
    for start in range(chunk * length, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < last)[:, None] & within[None, :]
        at = (sample * N + rows)[:, None] * D + columns[None, :]
        rescaled, reciprocal = _normed(_load(total, at, inside), D)
        gradient = _load(d_normed, at, inside)
        of_shifts += gradient
        of_scales += gradient * rescaled
        gradient = gradient * factor
        along = tl.sum(gradient * rescaled, 1)[:, None] / D
        gradient = reciprocal * (gradient - rescaled * along)
        gradient = tl.where(inside, gradient, 0.0)
        if TOTAL:
            gradient += _load(d_total, at, inside)
        _store(dx, at, gradient, inside)
        if ADDS:
            of_gates += gradient * _load(branch, at, inside)
            _store(d_branch, at, gradient * gates, inside)
    at = ((sample * tl.num_programs(1) + chunk) * 3) * D + columns
    tl.store(sums + at, tl.sum(of_gates, 0), mask=within)
    tl.store(sums + at + D, tl.sum(of_shifts, 0), mask=within)
    tl.store(sums + at + 2 * D, tl.sum(of_scales, 0), mask=within)


def blocks(x: Tensor, elements: int) -> dict[str, int]:
    columns = power_of_two(x.shape[-1])
    return {"ROWS": max(1, elements // columns), "COLUMNS": columns}


def forward(
    x: Tensor, branch: Tensor | None, gate: Tensor | None, shift: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """x + gate * branch (empty without a branch), and the norm of it."""

    def rehearse() -> None:
        total, normed = forward(x, branch, gate, shift, scale)
        for d_total in (normed, None):
            backward(d_total, normed, x if branch is None else total, branch, gate, scale)

    key = ("adaptive_norm", x.device, x.dtype, x.shape[-1], branch is None)
    compile_first(key, rehearse)
    adds = branch is not None and gate is not None
    total, normed = x.new_empty(x.shape if adds else 0), torch.empty_like(x)
    sizes = blocks(x, ELEMENTS)
    rows = x.numel() // x.shape[-1]
    gates = gate if gate is not None else scale
    launch(
        _forward_kernel, (triton.cdiv(rows, sizes["ROWS"]),), x, branch if adds else x, gates,
        shift, scale, total, normed, rows, x.shape[1], x.shape[2], gates.stride(0),
        shift.stride(0), scale.stride(0), **sizes, ADDS=adds,
    )  # fmt: skip
    return total, normed


def backward(
    d_total: Tensor | None,
    d_normed: Tensor,
    total: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of the branch (empty without one) and, in fp32, (b, 3, d) those of
    gate, shift and scale."""
    b, n, d = total.shape
    adds = branch is not None and gate is not None
    sizes = blocks(total, ELEMENTS_BACKWARD)
    chunks = max(1, min(triton.cdiv(PROGRAMS, b), triton.cdiv(n, sizes["ROWS"])))
    length = triton.cdiv(n, chunks)
    chunks = triton.cdiv(n, length)
    dx, d_branch = torch.empty_like(total), total.new_empty(total.shape if adds else 0)
    sums = total.new_empty(b, chunks, 3, d, dtype=torch.float32)
    gates = gate if gate is not None else scale
    launch(
        _backward_kernel, (b, chunks), d_normed if d_total is None else d_total, d_normed, total,
        branch if adds else total, gates, scale, dx, d_branch, sums, n, d, length,
        gates.stride(0), scale.stride(0), **sizes, ADDS=adds, TOTAL=d_total is not None,
    )  # fmt: skip
    return dx, d_branch, sums.sum(1)

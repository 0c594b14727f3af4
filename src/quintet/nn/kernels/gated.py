"""Gated activations in one pass: x (rows, 2 f) holds values and gates. The backward pass writes the
gradient of x whole, where those of two slices would be joined by another pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import compile_first, launch

ROWS, COLUMNS = 8, 256
KINDS = {
    "swiglu": {"GELU": False, "GATE_FIRST": False},
    "geglu": {"GELU": True, "GATE_FIRST": True},
}


@triton.jit
def _tile(P, F, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile of an (rows, f) matrix and of an (rows, 2 f) one, and what is inside."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < P)[:, None] & (columns < F)[None, :]
    return rows[:, None] * F + columns[None, :], rows[:, None] * 2 * F + columns[None, :], inside


@triton.jit
def _places(wide, F, GATE_FIRST: tl.constexpr):
    """Offsets of values and gates."""
    at_value, at_gate = wide, wide + F
    if GATE_FIRST:
        at_value, at_gate = at_gate, at_value
    return at_value, at_gate


@triton.jit
def _share(gate, GELU: tl.constexpr):
    """What the activation multiplies its input by: GELU (exact) or SiLU."""
    return 0.5 * (1 + tl.erf(gate * 0.7071067811865476)) if GELU else tl.sigmoid(gate)


@triton.jit(do_not_specialize=["P"])
def _forward_kernel(
    x, y, P, F,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr, GATE_FIRST: tl.constexpr,
):  # fmt: skip
    at, wide, inside = _tile(P, F, ROWS, COLUMNS)
    at_value, at_gate = _places(wide, F, GATE_FIRST)
    value = tl.load(x + at_value, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + at_gate, mask=inside, other=0.0).to(tl.float32)
    product = value * gate * _share(gate, GELU)
    tl.store(y + at, product.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["P"])
def _backward_kernel(
    dy, x, dx, P, F,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr, GATE_FIRST: tl.constexpr,
):  # fmt: skip
    at, wide, inside = _tile(P, F, ROWS, COLUMNS)
    at_value, at_gate = _places(wide, F, GATE_FIRST)
    value = tl.load(x + at_value, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + at_gate, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    share = _share(gate, GELU)
    d_value = gradient * gate * share
    if GELU:
        d_gate = gradient * value * (share + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate))
    else:
        d_gate = gradient * value * share * (1 + gate * (1 - share))
    tl.store(dx + at_value, d_value.to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + at_gate, d_gate.to(dx.dtype.element_ty), mask=inside)


def sizes(x: Tensor) -> tuple[tuple[int, int], int, int]:
    """Grid, rows and columns."""
    columns = x.shape[-1] // 2
    rows = x.numel() // x.shape[-1]
    return (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)), rows, columns


def forward(x: Tensor, kind: str) -> Tensor:
    key = ("gated", kind, x.device, x.dtype, x.shape[-1] % 32)
    compile_first(key, lambda: backward(forward(x, kind), x, kind))
    grid, rows, columns = sizes(x)
    y = x.new_empty(*x.shape[:-1], columns)
    blocks = {"ROWS": ROWS, "COLUMNS": COLUMNS, **KINDS[kind]}
    launch(_forward_kernel, grid, x, y, rows, columns, **blocks)
    return y


def backward(dy: Tensor, x: Tensor, kind: str) -> Tensor:
    grid, rows, columns = sizes(x)
    dx = torch.empty_like(x)
    blocks = {"ROWS": ROWS, "COLUMNS": COLUMNS, **KINDS[kind]}
    launch(_backward_kernel, grid, dy, x, dx, rows, columns, **blocks)
    return dx

"""SwiGLU in one pass: x (rows, 2 f) holds values and gates. The backward pass writes the gradient
of x whole, where those of two slices would be joined by another pass."""

# Triton is installed on CUDA machines only.
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import compile_first, launch

ROWS, COLUMNS = 8, 256


@triton.jit
def _tile(P, F, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile of an (rows, f) matrix and of an (rows, 2 f) one, and what is inside."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < P)[:, None] & (columns < F)[None, :]
    return rows[:, None] * F + columns[None, :], rows[:, None] * 2 * F + columns[None, :], inside


@triton.jit(do_not_specialize=["P"])
def _forward_kernel(x, y, P, F, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at, wide, inside = _tile(P, F, ROWS, COLUMNS)
    value = tl.load(x + wide, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + wide + F, mask=inside, other=0.0).to(tl.float32)
    product = value * gate * tl.sigmoid(gate)
    tl.store(y + at, product.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["P"])
def _backward_kernel(dy, x, dx, P, F, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at, wide, inside = _tile(P, F, ROWS, COLUMNS)
    value = tl.load(x + wide, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + wide + F, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    d_value = gradient * gate * open_
    d_gate = gradient * value * open_ * (1 + gate * (1 - open_))
    tl.store(dx + wide, d_value.to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + wide + F, d_gate.to(dx.dtype.element_ty), mask=inside)


def sizes(x: Tensor) -> tuple[tuple[int, int], int, int]:
    """Grid, rows and columns."""
    columns = x.shape[-1] // 2
    rows = x.numel() // x.shape[-1]
    return (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)), rows, columns


def forward(x: Tensor) -> Tensor:
    compile_first(("swiglu", x.device, x.dtype, x.shape[-1] % 32), lambda: backward(forward(x), x))
    grid, rows, columns = sizes(x)
    y = x.new_empty(*x.shape[:-1], columns)
    launch(_forward_kernel, grid, x, y, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS)
    return y


def backward(dy: Tensor, x: Tensor) -> Tensor:
    grid, rows, columns = sizes(x)
    dx = torch.empty_like(x)
    launch(_backward_kernel, grid, dy, x, dx, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS)
    return dx

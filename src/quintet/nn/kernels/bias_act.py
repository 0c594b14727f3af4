"""Bias, activation and skip connection in one pass over the output of a convolution.

y (n, c, ...) is in channels-last memory: a matrix of rows (positions) and channels. A program takes
a block of columns and a chunk of rows. Sums for the gradient of the bias are added up in a fixed
order, without atomics. The constants are the same for all shapes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import FORMATS, compile_first, launch
from quintet.nn.kernels.norm_act import ACTIVATIONS, PROGRAMS

ROWS, COLUMNS = 32, 64
PLAIN = ["P", "length", "skips", "activation"]


@triton.jit
def _tile(start, block, P, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile, and which of them are inside."""
    rows = start + tl.arange(0, ROWS).to(tl.int64)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < P)[:, None] & (columns < C)[None, :]
    return rows[:, None] * C + columns[None, :], inside


@triton.jit
def _load_bias(bias, block, C, COLUMNS: tl.constexpr):
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    return tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=PLAIN)
def _forward_kernel(
    y, bias, skip, out, P, C, skips, activation, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    block = tl.program_id(1)
    at, inside = _tile(tl.program_id(0) * ROWS, block, P, C, ROWS, COLUMNS)
    values = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    values += _load_bias(bias, block, C, COLUMNS)
    if activation == 1:
        values = values * tl.sigmoid(values)
    if activation == 2:
        values = tl.where(values > 0, values, 0.2 * values)
    _, skipped = _tile(tl.program_id(0) * ROWS, block, P * skips, C, ROWS, COLUMNS)
    values += tl.load(skip + at, mask=skipped, other=0.0).to(tl.float32)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def _backward_kernel(
    dout, y, bias, dy, sums, P, C, length, activation, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """dy, if there is an activation, and sums (chunks, c) of it."""
    chunk, block = tl.program_id(0), tl.program_id(1)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    last = tl.minimum((chunk + 1) * length, P)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(chunk * length, last, ROWS):
        at, inside = _tile(start, block, last, C, ROWS, COLUMNS)
        gradient = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
        if activation > 0:
            z = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            z += _load_bias(bias, block, C, COLUMNS)
            if activation == 1:
                gate = tl.sigmoid(z)
                gradient = gradient * gate * (1 + z * (1 - gate))
            if activation == 2:
                gradient = tl.where(z > 0, gradient, 0.2 * gradient)
            tl.store(dy + at, gradient.to(dy.dtype.element_ty), mask=inside)
        total += gradient
    tl.store(sums + chunk * C + columns, tl.sum(total, 0), mask=columns < C)


def forward(y: Tensor, bias: Tensor, skip: Tensor | None, activation: str) -> Tensor:
    """activation(y + bias) + skip."""

    def rehearse() -> None:
        out = forward(y, bias, skip, activation)
        backward(out, None if activation == "none" else y, bias, activation)

    dtypes = tuple(None if t is None else t.dtype for t in (y, bias, skip))
    compile_first(("bias_act", y.device, y.shape[1] % 16, activation == "none", dtypes), rehearse)
    channels = y.shape[1]
    rows = y.numel() // channels
    dtype = y.dtype if skip is None else torch.result_type(y, skip)
    out = torch.empty_like(y, dtype=dtype, memory_format=FORMATS[y.ndim])
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(channels, COLUMNS))
    launch(
        _forward_kernel, grid, y, bias, y if skip is None else skip, out, rows, channels,
        int(skip is not None), ACTIVATIONS[activation], ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return out


def backward(
    dout: Tensor, y: Tensor | None, bias: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """The gradients of y and, in fp32, of the bias; without an activation y is not needed, and its
    gradient, `dout`, is not written."""
    channels = dout.shape[1]
    rows = dout.numel() // channels
    blocks = triton.cdiv(channels, COLUMNS)
    chunks = max(1, min(triton.cdiv(PROGRAMS, blocks), triton.cdiv(rows, ROWS)))
    length = triton.cdiv(triton.cdiv(rows, chunks), ROWS) * ROWS
    chunks = triton.cdiv(rows, length)
    dy = dout.new_empty(0) if y is None else torch.empty_like(y)
    sums = dout.new_empty(chunks, channels, dtype=torch.float32)
    launch(
        _backward_kernel, (chunks, blocks), dout, dout if y is None else y, bias, dy, sums, rows,
        channels, length, ACTIVATIONS[activation], ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return dy, sums.sum(0)

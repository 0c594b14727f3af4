"""Windows of rows, each row beside those up to `radius` before and after: one gather each way.

x (b, n, w) -> y (b, n, 2 radius + 1, w), zero where a row has another owner. Whether two rows have
the same owner does not depend on their order, so the backward pass is a gather too: the gradient of
a row is the sum of its copies in the windows around it, in fp32.
"""

import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import compile_first, launch, power_of_two

ELEMENTS, COLUMNS = 2048, 256
PLAIN = ["P", "positions"]


@triton.jit
def _block(owner, P, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows, their owners (-1 outside) and columns of a block."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return row, tl.load(owner + row, mask=row < P, other=-1), columns


@triton.jit
def _is_near(owner, own, row, offset, positions):
    """Whether the row at this offset is of the same sample and has the same owner."""
    position = row % positions + offset
    inside = (own >= 0) & (position >= 0) & (position < positions)
    other = tl.load(owner + row + offset, mask=inside, other=-1)
    return inside & (other == own)


@triton.jit(do_not_specialize=PLAIN)
def _forward_kernel(
    x, owner, y, P, positions, W,
    RADIUS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, own, columns = _block(owner, P, ROWS, COLUMNS)
    at = row.to(tl.int64)[:, None] * W + columns[None, :]
    to = row.to(tl.int64)[:, None] * (2 * RADIUS + 1) * W + columns[None, :]
    inside = (row < P)[:, None] & (columns < W)[None, :]
    for i in tl.static_range(2 * RADIUS + 1):
        near = _is_near(owner, own, row, i - RADIUS, positions)
        values = tl.load(x + at + (i - RADIUS) * W, mask=inside & near[:, None], other=0.0)
        tl.store(y + to + i * W, values, mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def _backward_kernel(
    dy, owner, dx, P, positions, W,
    RADIUS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, own, columns = _block(owner, P, ROWS, COLUMNS)
    at = row.to(tl.int64)[:, None] * W + columns[None, :]
    inside = (row < P)[:, None] & (columns < W)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in tl.static_range(2 * RADIUS + 1):
        near = _is_near(owner, own, row, RADIUS - i, positions)
        window = (row.to(tl.int64) + RADIUS - i)[:, None] * (2 * RADIUS + 1) * W
        copies = dy + window + i * W + columns[None, :]
        total += tl.load(copies, mask=inside & near[:, None], other=0.0).to(tl.float32)
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=inside)


def plan(x: Tensor, radius: int) -> tuple[tuple[int, int], tuple[int, int, int], dict[str, int]]:
    """Grid; rows, rows of a sample and columns; constants."""
    positions, width = x.shape[1:]
    rows = x.shape[0] * positions
    columns = min(COLUMNS, power_of_two(width))
    block = {"RADIUS": radius, "ROWS": ELEMENTS // columns, "COLUMNS": columns}
    grid = (triton.cdiv(rows, block["ROWS"]), triton.cdiv(width, columns))
    return grid, (rows, positions, width), block


def forward(x: Tensor, owner: Tensor, radius: int) -> Tensor:
    """x (b, n, w) and owner (b, n) -> (b, n, (2 radius + 1) w)."""
    key = ("windows", x.device, x.dtype, owner.dtype, x.shape[2], radius)
    compile_first(key, lambda: backward(forward(x, owner, radius), owner, radius))
    grid, numbers, constants = plan(x, radius)
    y = x.new_empty(*x.shape[:2], (2 * radius + 1) * x.shape[2])
    launch(_forward_kernel, grid, x, owner, y, *numbers, **constants)
    return y


def backward(dy: Tensor, owner: Tensor, radius: int) -> Tensor:
    dx = dy.new_empty(*dy.shape[:2], dy.shape[2] // (2 * radius + 1))
    grid, numbers, constants = plan(dx, radius)
    launch(_backward_kernel, grid, dy, owner, dx, *numbers, **constants)
    return dx

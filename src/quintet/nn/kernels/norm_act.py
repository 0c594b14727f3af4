"""Group norm and activation in one pass: two kernels forward, two backward.

x (n, c, ...) is in channels-last memory: each sample is a matrix of rows (positions) and channels.
A bias, of the convolution before, may be added to it first. Samples may be the frames of clips:
then `lead` copies of each first frame are written before it, for a convolution over time.
Forward reads x twice and writes y; backward reads x and dy twice and writes dx. A program takes one
sample, a block of whole groups, and a chunk of rows. Its sums are added up by every program of the
next kernel: a fixed order, without atomics. Statistics are in fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quintet.nn.kernels import FORMATS, compile_first, launch

ACTIVATIONS = {"none": 0, "silu": 1, "leaky_relu": 2}
PROGRAMS = 132 * 8
"""Wanted at least: eight for each multiprocessor of an H200. A constant, so that results do not
depend on the device."""
PLAIN = ["P", "G", "chunks", "length", "adds", "activation", "frames", "lead"]
"""Numbers that are not worth a kernel of their own: each takes a third of a second to compile."""
CHUNKS = 64
"""Upper bound. One constant for all shapes: each further one is a kernel to compile."""
ELEMENTS, ELEMENTS_BACKWARD = 4096, 2048
"""Elements of a program at a time: the fastest of 1024 to 8192 on an H200."""


@triton.jit
def _to_channels(values, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.reshape(tl.broadcast_to(values[:, None], [GROUPS, WIDTH]), [GROUPS * WIDTH])


@triton.jit
def _to_groups(values, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.sum(tl.reshape(values, [GROUPS, WIDTH]), 1)


@triton.jit
def _load(x, rows, last, columns, C):
    inside = (rows < last)[:, None] & (columns < C)[None, :]
    return tl.load(x + rows[:, None] * C + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _load_vector(vector, columns, C):
    return tl.load(vector + columns, mask=columns < C, other=0.0).to(tl.float32)


@triton.jit
def _store(y, values, rows, last, columns, C):
    inside = (rows < last)[:, None] & (columns < C)[None, :]
    at = y + rows[:, None] * C + columns[None, :]
    tl.store(at, values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _padded(sample, frames, lead):
    """The position of a frame among those with copies, and how many copies stand before it."""
    copies = tl.where(sample % frames == 0, lead, 0)
    return (sample + (sample // frames + 1) * lead).to(tl.int64), copies


@triton.jit
def _offsets(x, added, adds, groups, G, WIDTH: tl.constexpr):
    """The first value of each group: sums of differences from it do not cancel far from 0."""
    size = G * WIDTH
    return _load_vector(x, groups * WIDTH, size) + _load_vector(added, groups * WIDTH, size * adds)


@triton.jit(do_not_specialize=PLAIN)
def _sums_kernel(
    x, added, sums, P, C, G, chunks, length, adds,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """sums (n, groups, chunks, 2): of x - offset and of its square."""
    sample, block, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = block * GROUPS * WIDTH + tl.arange(0, GROUPS * WIDTH)
    groups = block * GROUPS + tl.arange(0, GROUPS)
    x += sample.to(tl.int64) * P * C
    offset = _to_channels(_offsets(x, added, adds, groups, G, WIDTH), GROUPS, WIDTH)
    offset = (offset - _load_vector(added, columns, C * adds))[None, :]
    last = tl.minimum((chunk + 1) * length, P)
    first_sum = tl.zeros([R, GROUPS * WIDTH], tl.float32)
    second_sum = tl.zeros([R, GROUPS * WIDTH], tl.float32)
    for start in range(chunk * length, last, R):
        rows = start + tl.arange(0, R)
        values = _load(x, rows, last, columns, C) - offset
        values = tl.where((rows < last)[:, None], values, 0.0)
        first_sum += values
        second_sum += values * values
    at = sums + ((sample * G + groups) * chunks + chunk) * 2
    tl.store(at, _to_groups(tl.sum(first_sum, 0), GROUPS, WIDTH), mask=groups < G)
    tl.store(at + 1, _to_groups(tl.sum(second_sum, 0), GROUPS, WIDTH), mask=groups < G)


@triton.jit(do_not_specialize=PLAIN)
def _apply_kernel(
    x, added, y, sums, weight, bias, means, rstds,
    P, C, G, chunks, length, adds, activation, frames, lead, eps,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, R: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    sample, block, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = block * GROUPS * WIDTH + tl.arange(0, GROUPS * WIDTH)
    groups = block * GROUPS + tl.arange(0, GROUPS)
    x += sample.to(tl.int64) * P * C
    position, copies = _padded(sample, frames, lead)
    y += position * P * C
    k = tl.arange(0, CHUNKS)
    at = sums + ((sample * G + groups)[:, None] * chunks + k[None, :]) * 2
    summed = (groups < G)[:, None] & (k < chunks)[None, :]
    count = P * WIDTH
    first = tl.sum(tl.load(at, mask=summed, other=0.0), 1) / count
    second = tl.sum(tl.load(at + 1, mask=summed, other=0.0), 1) / count
    mean = _offsets(x, added, adds, groups, G, WIDTH) + first
    variance = second - first * first
    # Not `tl.maximum`, which would hide NaN.
    rstd = 1.0 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)
    # Every chunk has computed the same.
    tl.store(means + sample * G + groups, mean, mask=groups < G)
    tl.store(rstds + sample * G + groups, rstd, mask=groups < G)
    scale = (_load_vector(weight, columns, C) * _to_channels(rstd, GROUPS, WIDTH))[None, :]
    shift = _load_vector(bias, columns, C)[None, :]
    mean = _to_channels(mean, GROUPS, WIDTH)
    mean = (mean - _load_vector(added, columns, C * adds))[None, :]
    last = tl.minimum((chunk + 1) * length, P)
    for start in range(chunk * length, last, R):
        rows = start + tl.arange(0, R)
        normed = (_load(x, rows, last, columns, C) - mean) * scale + shift
        if activation == 1:
            normed = normed * tl.sigmoid(normed)
        if activation == 2:
            normed = tl.where(normed > 0, normed, 0.2 * normed)
        _store(y, normed, rows, last, columns, C)
        for copy in range(1, copies + 1):
            _store(y - copy * P * C, normed, rows, last, columns, C)


@triton.jit
def _gradients(x, dy, copies, P, rows, last, columns, C, mean, rstd, scale, shift, activation):
    """Normalised x, and the gradient before the activation; 0 outside."""
    normed = (_load(x, rows, last, columns, C) - mean) * rstd
    gradient = _load(dy, rows, last, columns, C)
    for copy in range(1, copies + 1):
        gradient += _load(dy - copy * P * C, rows, last, columns, C)
    z = normed * scale + shift
    if activation == 1:
        gate = tl.sigmoid(z)
        gradient = gradient * gate * (1 + z * (1 - gate))
    if activation == 2:
        gradient = tl.where(z > 0, gradient, 0.2 * gradient)
    return normed, gradient


@triton.jit(do_not_specialize=PLAIN)
def _backward_sums_kernel(
    x, added, dy, sums, weight, bias, means, rstds,
    P, C, G, chunks, length, adds, activation, frames, lead,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """sums (n, chunks, 2 or 3, c): of the gradient, and of its product with the normalised x."""
    sample, block, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = block * GROUPS * WIDTH + tl.arange(0, GROUPS * WIDTH)
    groups = sample * G + columns // WIDTH
    x += sample.to(tl.int64) * P * C
    position, copies = _padded(sample, frames, lead)
    dy += position * P * C
    mean = tl.load(means + groups, mask=columns < C, other=0.0)
    mean = (mean - _load_vector(added, columns, C * adds))[None, :]
    rstd = tl.load(rstds + groups, mask=columns < C, other=0.0)[None, :]
    scale = _load_vector(weight, columns, C)[None, :]
    shift = _load_vector(bias, columns, C)[None, :]
    last = tl.minimum((chunk + 1) * length, P)
    first_sum = tl.zeros([R, GROUPS * WIDTH], tl.float32)
    second_sum = tl.zeros([R, GROUPS * WIDTH], tl.float32)
    for start in range(chunk * length, last, R):
        rows = start + tl.arange(0, R)
        normed, gradient = _gradients(
            x, dy, copies, P, rows, last, columns, C, mean, rstd, scale, shift, activation
        )
        first_sum += gradient
        second_sum += gradient * normed
    at = sums + (sample * chunks + chunk) * (2 + adds) * C + columns
    tl.store(at, tl.sum(first_sum, 0), mask=columns < C)
    tl.store(at + C, tl.sum(second_sum, 0), mask=columns < C)


@triton.jit(do_not_specialize=PLAIN)
def _backward_apply_kernel(
    x, added, dy, dx, sums, weight, bias, means, rstds,
    P, C, G, chunks, length, adds, activation, frames, lead,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, R: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Also the third of the sums, of dx: the gradient of the bias that was added."""
    sample, block, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = block * GROUPS * WIDTH + tl.arange(0, GROUPS * WIDTH)
    groups = sample * G + columns // WIDTH
    x += sample.to(tl.int64) * P * C
    position, copies = _padded(sample, frames, lead)
    dy += position * P * C
    dx += sample.to(tl.int64) * P * C
    mean = tl.load(means + groups, mask=columns < C, other=0.0)
    mean = (mean - _load_vector(added, columns, C * adds))[None, :]
    rstd = tl.load(rstds + groups, mask=columns < C, other=0.0)[None, :]
    scale = _load_vector(weight, columns, C)
    shift = _load_vector(bias, columns, C)[None, :]
    k = tl.arange(0, CHUNKS)
    at = sums + (sample * chunks + k)[:, None] * (2 + adds) * C + columns[None, :]
    summed = (k < chunks)[:, None] & (columns < C)[None, :]
    first = tl.sum(tl.load(at, mask=summed, other=0.0), 0) * scale
    second = tl.sum(tl.load(at + C, mask=summed, other=0.0), 0) * scale
    count = P * WIDTH
    first = _to_channels(_to_groups(first, GROUPS, WIDTH) / count, GROUPS, WIDTH)[None, :]
    second = _to_channels(_to_groups(second, GROUPS, WIDTH) / count, GROUPS, WIDTH)[None, :]
    scale = scale[None, :]
    last = tl.minimum((chunk + 1) * length, P)
    total = tl.zeros([R, GROUPS * WIDTH], tl.float32)
    for start in range(chunk * length, last, R):
        rows = start + tl.arange(0, R)
        normed, gradient = _gradients(
            x, dy, copies, P, rows, last, columns, C, mean, rstd, scale, shift, activation
        )
        gradient = (gradient * scale - first - normed * second) * rstd
        _store(dx, gradient, rows, last, columns, C)
        total += tl.where((rows < last)[:, None], gradient, 0.0)
    at = sums + ((sample * chunks + chunk) * 3 + 2) * C + columns
    tl.store(at, tl.sum(total, 0), mask=columns < C * adds)


Plan = tuple[tuple[int, int, int], tuple[int, int, int, int, int], dict[str, int]]


def plan(x: Tensor, groups: int, elements: int) -> Plan:
    """How the programs share a tensor: grid (samples, blocks of groups, chunks of rows), sizes
    (rows, channels, groups, chunks, rows of a chunk) and constants."""
    samples, channels = x.shape[:2]
    rows = x.numel() // (samples * channels)
    width = channels // groups
    together = 1
    while together * 2 * width <= 128 and together * 2 <= groups:
        together *= 2
    step = max(1, elements // (together * width))
    blocks = triton.cdiv(groups, together)
    chunks = max(1, min(CHUNKS, triton.cdiv(PROGRAMS, samples * blocks), triton.cdiv(rows, step)))
    length = triton.cdiv(triton.cdiv(rows, chunks), step) * step
    chunks = triton.cdiv(rows, length)
    sizes = rows, channels, groups, chunks, length
    return (samples, blocks, chunks), sizes, {"WIDTH": width, "GROUPS": together, "R": step}


def forward(
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    dtype: torch.dtype,
    frames: int,
    lead: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output in this dtype, and means and reciprocal deviations (n, groups)."""

    def rehearse() -> None:
        y, mean, rstd = forward(
            x, added, weight, bias, groups, eps, activation, dtype, frames, lead
        )
        backward(y, x, added, weight, bias, mean, rstd, activation, frames, lead)

    dtypes = tuple(None if t is None else t.dtype for t in (x, added, weight, bias))
    compile_first(("norm_act", x.device, x.shape[1], groups, dtypes, dtype), rehearse)
    grid, sizes, blocks = plan(x, groups, ELEMENTS)
    shape = (x.shape[0] // frames * (frames + lead), *x.shape[1:])
    y = torch.empty(shape, dtype=dtype, device=x.device, memory_format=FORMATS[x.ndim])
    sums = x.new_empty(grid[0], groups, grid[2], 2, dtype=torch.float32)
    mean, rstd = (x.new_empty(grid[0], groups, dtype=torch.float32) for _ in range(2))
    adds, added = (0, bias) if added is None else (1, added)
    launch(_sums_kernel, grid, x, added, sums, *sizes, adds, **blocks)
    launch(
        _apply_kernel, grid, x, added, y, sums, weight, bias, mean, rstd, *sizes, adds,
        ACTIVATIONS[activation], frames, lead, eps, CHUNKS=CHUNKS, **blocks,
    )  # fmt: skip
    return y, mean, rstd


def backward(
    dy: Tensor,
    x: Tensor,
    added: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    activation: str,
    frames: int,
    lead: int,
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and in fp32 (2 or 3, c) those of bias, weight and `added`."""
    grid, sizes, blocks = plan(x, mean.shape[1], ELEMENTS_BACKWARD)
    adds, added = (0, bias) if added is None else (1, added)
    dx = torch.empty_like(x, memory_format=FORMATS[x.ndim])
    sums = x.new_empty(grid[0], grid[2], 2 + adds, x.shape[1], dtype=torch.float32)
    numbers = (*sizes, adds, ACTIVATIONS[activation], frames, lead)
    parameters = (weight, bias, mean, rstd)
    tensors = (x, added, dy)
    launch(_backward_sums_kernel, grid, *tensors, sums, *parameters, *numbers, **blocks)
    launch(
        _backward_apply_kernel, grid, *tensors, dx, sums, *parameters, *numbers,
        CHUNKS=CHUNKS, **blocks,
    )  # fmt: skip
    return dx, sums.sum((0, 1))

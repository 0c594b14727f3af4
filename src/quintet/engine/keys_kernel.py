"""`keys.uniform` and `keys.normal` as one Triton kernel, for CUDA: some sixty passes in int64 else.

The bits are those of the plain versions; the normal values differ in the last one.
"""

# Triton is installed on CUDA machines only.
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
PLAIN = ["count", "first", "second", "is_normal"]


@triton.jit
def _splitmix64(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _uniform(key, name, counter):
    base = _splitmix64(key ^ name.to(tl.uint64))
    bits = _splitmix64(base + counter * 0x9E3779B97F4A7C15)
    return (bits >> 40).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit(do_not_specialize=PLAIN)
def _noise_kernel(keys, out, count, first, second, is_normal, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key, counter = tl.load(keys + row).to(tl.uint64), at.to(tl.uint64)
    values = _uniform(key, first, counter)
    if is_normal:
        angle = _uniform(key, second, counter)
        values = tl.sqrt(-2.0 * tl.log(1.0 - values)) * tl.cos(6.283185307179586 * angle)
    tl.store(out + row.to(tl.int64) * count + at, values, mask=at < count)


def noise(keys: Tensor, names: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """Uniform values of one name, or normal ones of two: radius and angle."""
    count = math.prod(shape)
    out = torch.empty(len(keys), *shape, device=keys.device)
    grid = (triton.cdiv(count, BLOCK), len(keys))
    if out.numel():
        with torch.cuda.device_of(keys):
            _noise_kernel[grid](
                keys.long().contiguous(), out, count, names[0], names[-1], len(names) - 1,
                BLOCK=BLOCK,
            )  # fmt: skip
    return out

"""Triton kernels for CUDA. Nothing in here is imported on a CPU, and quintet does not need Triton.

Each is the CUDA implementation of a custom operation whose plain version stands beside its caller:
`alignment` for `nn/alignment.py`, `norm_act` for `nn/norms.py`. Grids and block sizes follow from
the shapes alone: nothing is read from the device, so a CUDA graph can hold every launch.
"""

from functools import cache

from torch import Tensor
from torch.utils import _triton


@cache
def has_triton() -> bool:
    return _triton.has_triton_package()


def fits(x: Tensor) -> bool:
    """Whether the kernels can run on this tensor; offsets within a sample are 32-bit."""
    return has_triton() and x.numel() > 0 and x[0].numel() < 2**31


def power_of_two(size: int, least: int = 1) -> int:
    """The next one."""
    return max(least, 1 << (size - 1).bit_length())

"""Triton kernels for CUDA. Nothing in here is imported on a CPU, and quintet does not need Triton.

Each is the CUDA implementation of a custom operation whose plain version stands beside its caller:
`alignment` for `nn/alignment.py`, `norm_act` for `nn/norms.py`, `bias_act` for `nn/fused.py`,
`adaptive_norm` for `nn/adaptive_norm.py`, `heads` and `gated` for `nn/heads.py`,
`short_attention` and `decode` for `nn/attention.py`, `windows` for `mesh/autoencoder/graph.py`.
Grids and block sizes follow from the shapes alone: nothing is read from the device, so a CUDA graph
can hold every launch.
"""

import importlib
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quintet.triton import HAS_TRITON

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Channels-last memory by number of dimensions."""


def fits(x: Tensor) -> bool:
    """Whether the kernels can run on this tensor; offsets within a sample are 32-bit."""
    return HAS_TRITON and x.numel() > 0 and x.numel() // len(x) < 2**31


def power_of_two(size: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length())


def lazy(name: str) -> Any:
    """A module of this folder, imported when it is used: it needs Triton."""
    return importlib.import_module(f"{__name__}.{name}")


_compiles_only = False


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """kernel[grid](*args, **options) on its device, or only compiled: see `compiled_together`."""
    with torch.cuda.device_of(args[0]):
        if _compiles_only:
            kernel.warmup(*args, grid=grid, **options)
        else:
            kernel[grid](*args, **options)


@contextmanager
def compiled_together() -> Generator[None, None, None]:
    """Compile all kernels launched inside at the same time, and run none of them."""
    global _compiles_only
    import triton  # type: ignore[import-not-found]

    with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
        _compiles_only = True
        try:
            yield
        finally:
            _compiles_only = False


_ready: set[Hashable] = set()


def compile_first(key: Hashable, rehearse: Callable[[], object]) -> None:
    """At the first call with this key, compile the kernels that `rehearse` launches, together: one
    after the other, as a step meets them, they take up to a second each."""
    if key not in _ready and not _compiles_only:
        with compiled_together():
            rehearse()
        _ready.add(key)

"""CUDA's libraries, read ahead of their first use.

cuDNN and cuBLAS load their kernels one by one from files of hundreds of megabytes. On a machine
that has just started these lie on a cold disk, and the first step waits for pieces of them for some
ten seconds. Reading them from front to back takes less, and happens while Python imports.
"""

import threading
from importlib.machinery import PathFinder
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia")
PACKAGES = ("nvidia/cudnn/lib", "nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib")
FILES = ("libcudnn*.so*", "libcublasLt.so*", "libtorch_cuda.so")
"""Those that steps load kernels from, the first needed first."""
CHUNK = 8 << 20

_started = False


def read_ahead() -> None:
    """At the first call, on a machine with a GPU of NVIDIA, begin to read in a thread."""
    global _started
    if not _started and DRIVER.exists():
        _started = True
        threading.Thread(target=read, args=(libraries(),), daemon=True).start()


def libraries() -> list[Path]:
    """Where pip installs them; elsewhere, as with conda, nothing is found and nothing is lost."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    site = Path(spec.origin).parent.parent
    found = (path for name in FILES for folder in PACKAGES for path in (site / folder).glob(name))
    return list(dict.fromkeys(path.resolve() for path in found))


def read(paths: list[Path]) -> int:
    """Into the cache of the operating system; returns the bytes read."""
    total = 0
    for path in paths:
        try:
            with path.open("rb", buffering=0) as file:
                while part := len(file.read(CHUNK)):
                    total += part
        except OSError:  # it is only a hint
            continue
    return total

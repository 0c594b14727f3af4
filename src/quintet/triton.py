"""Whether Triton can compile here. It builds a small C program around each kernel, and container
images with only CUDA's run-time libraries have no C compiler."""

import os
import shutil
from importlib.util import find_spec

COMPILERS = ("gcc", "clang", "cc")
"""C compilers in Triton's order of search."""


def has_compiler() -> bool:
    """Whether there is a C compiler: the one named by CC, or else one of `COMPILERS`."""
    named = os.environ.get("CC")
    return any(shutil.which(name) for name in ([named] if named else COMPILERS))


HAS_TRITON = find_spec("triton") is not None and has_compiler()

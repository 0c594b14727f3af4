"""Whether Triton can compile here. It builds a small C program around each kernel, and images with
CUDA's run-time libraries alone have no C compiler."""

import os
import shutil
from importlib.util import find_spec

COMPILERS = ("gcc", "clang", "cc")
"""As Triton looks for them."""


def has_compiler() -> bool:
    """The environment variable CC names another one."""
    named = os.environ.get("CC")
    return any(shutil.which(name) for name in ([named] if named else COMPILERS))


HAS_TRITON = find_spec("triton") is not None and has_compiler()

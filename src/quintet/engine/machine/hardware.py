"""What this machine is, for the page of a run and for comparisons."""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from quintet.version import __version__

LIBRARIES = ("triton", "numpy", "pillow", "av", "soundfile", "soxr")
"""Other kernels, or other readers of files: the last digits of a run may follow from them."""


def facts(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else processor(),
        "cores": os.cpu_count(),
        "memory": f"{memory / 2**30:.1f} GiB",
        "system": platform.platform(),
    }


@cache
def versions(kind: str) -> dict[str, str]:
    """Of what computes on this kind of device, and of what reads files."""
    known = {
        "quintet": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    if kind == "cuda":
        known |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    return known


def changes(device: str | None, then: Mapping[str, Any], world: torch.device) -> list[str]:
    """What differs from a recorded device and its versions, in words. Python is not of it: no
    number of a run follows from it."""
    now = {"device": facts(world)["device"], **versions(world.type)}
    before = {"device": device, **then}
    return [
        f"{name} was {before[name]}, is {now.get(name, 'not there')}"
        for name in before
        if name != "python" and before[name] is not None and before[name] != now.get(name)
    ]


def processor() -> str:
    """Linux keeps its name in a file; elsewhere the platform knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()

"""What this machine is, for the page of a run and for comparisons."""

import os
import platform
from pathlib import Path
from typing import Any

import torch


def facts(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else processor(),
        "cores": os.cpu_count(),
        "memory": f"{memory / 2**30:.1f} GiB",
        "system": platform.platform(),
    }


def processor() -> str:
    """Linux keeps its name in a file; elsewhere the platform knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()

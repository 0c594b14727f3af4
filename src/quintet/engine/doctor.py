"""What this machine has, for `quintet doctor`."""

import importlib.metadata
import os
import platform
import shutil

import torch

LIBRARIES = (
    "torch",
    "accelerate",
    "safetensors",
    "numpy",
    "pillow",
    "tensorboard",
    "wandb",
    "trackio",
)


def machine() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["cores"] = str(os.cpu_count())
    found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    found["free disk here"] = f"{shutil.disk_usage('.').free / 2**30:.1f} GiB"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            found[f"gpu {index}"] = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
        found["bf16"] = "yes" if torch.cuda.is_bf16_supported() else "no"
    else:
        found["gpu"] = "none that torch sees; recipes ending in _tiny are made for that"
    return found

"""What this machine has, and what of it would hurt training, for `quintet doctor`."""

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import tempfile
import time
from pathlib import Path

import torch

from quintet.engine.machine import memory
from quintet.version import __version__

LIBRARIES = ("torch", "accelerate", "safetensors", "numpy", "pillow")
PURPOSES = {
    "tensorboard": "curves in TensorBoard",
    "wandb": "reports to Weights & Biases",
    "trackio": "reports to trackio",
    "hub": "models from and to the Hugging Face Hub",
    "video": "reading and writing videos",
    "audio": "reading and resampling sounds",
    "text": "a frozen text encoder from a folder",
}
PACKAGES = {
    "hub": ["huggingface_hub"],
    "video": ["av"],
    "audio": ["soundfile", "soxr"],
    "text": ["transformers"],
}
SHARED = Path("/dev/shm")
BLOCK = 4 << 20
MOST = 128 << 20
"""Bytes that the test of the disk writes at most."""
SECONDS = 2.0
"""How long it writes at most."""
GIB, MIB = 2**30, 2**20


def machine(folder: Path, speed: float | None) -> dict[str, str]:
    """Facts by name, for a table; `speed` is the disk's, as measured."""
    found = {"quintet": __version__, "python": platform.python_version()}
    found["system"] = platform.platform()
    found |= {name: version(name) or "not installed" for name in LIBRARIES}
    found["cores"] = f"{usable_cores()} of {os.cpu_count()} usable"
    found["threads"] = f"{torch.get_num_threads()} in torch"
    found["memory"] = f"{memory.available() / GIB:.1f} of {memory.total() / GIB:.1f} GiB free"
    found |= gpus()
    if SHARED.is_dir():
        found["shared memory"] = f"{shutil.disk_usage(SHARED).free / GIB:.1f} GiB free ({SHARED})"
    found["disk here"] = f"{shutil.disk_usage(folder).free / GIB:.1f} GiB free"
    found["disk speed"] = f"{speed / 1e6:.0f} MB/s, synced" if speed else "cannot be written"
    for extra, packages in extras().items():
        have = [f"{name} {version(name)}" for name in packages if version(name)]
        lacking = [name for name in packages if not version(name)]
        state = ", ".join(have) if not lacking else f"pip install 'quintet[{extra}]'"
        found[f"for {PURPOSES.get(extra, extra)}"] = state
    return found


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Fewer than there are where a container or a scheduler says so."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpus() -> dict[str, str]:
    if not torch.cuda.is_available():
        return {"gpu": "none that torch sees"}
    found: dict[str, str] = {}
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        free, _ = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bf16"
        share = f"{free / GIB:.0f} of {facts.total_memory / GIB:.0f} GiB free"
        found[f"gpu {index}"] = f"{facts.name}, {share}, {bf16}"
    return found


def extras() -> dict[str, list[str]]:
    """Each extra that Quintet offers its users, and the packages that it stands for."""
    try:
        lines = importlib.metadata.requires("quintet") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        lines = []
    found: dict[str, list[str]] = {}
    for line in lines:
        of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        package = re.match(r"[\w.-]+", line)
        if of and package and of[1] not in ("dev", "docs"):
            found.setdefault(of[1], []).append(package[0])
    return found or {name: PACKAGES.get(name, [name]) for name in PURPOSES}


def disk_speed(folder: Path) -> float | None:
    """Bytes a second, written and synced, or None where nothing can be written.

    The file has no name, so that nothing is left behind whatever happens.
    """
    block = os.urandom(BLOCK)  # some disks compress
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            begin, written = time.perf_counter(), 0
            while written < MOST and time.perf_counter() - begin < SECONDS:
                written += file.write(block)
                os.fsync(file.fileno())
            return written / (time.perf_counter() - begin)
    except OSError:
        return None


def complaints(folder: Path, speed: float | None) -> list[str]:
    """A sentence for each thing that would hurt training."""
    return [*_about_device(), *_about_host(), *_about_disk(folder, speed)]


def _about_device() -> list[str]:
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return []
        return ["The GPU only emulates bf16: give --precision fp32."]
    if Path("/dev/nvidia0").exists():
        return [
            f"There is an NVIDIA GPU, but torch {torch.__version__} does not see it: install the "
            "torch of your CUDA version, and look at the output of nvidia-smi."
        ]
    return ["There is no GPU: the recipes that end in _tiny are made for that, the others are not."]


def _about_host() -> list[str]:
    said: list[str] = []
    cores, threads = usable_cores(), torch.get_num_threads()
    if threads < cores // 2 and not torch.cuda.is_available():
        said.append(f"torch uses {threads} of {cores} cores: unset OMP_NUM_THREADS.")
    if os.getloadavg()[0] > 1.5 * cores:
        said.append(f"The machine is busy (load {os.getloadavg()[0]:.1f} on {cores} cores).")
    if memory.available() < 2 * GIB:
        free = memory.available() / GIB
        said.append(f"Only {free:.1f} GiB of memory are free: lower --batch-size and --workers.")
    if SHARED.is_dir() and shutil.disk_usage(SHARED).free < GIB:
        free = shutil.disk_usage(SHARED).free / MIB
        said.append(
            f"{SHARED} has {free:.0f} MiB free, and workers hand batches over through it: start "
            "the container with --shm-size 8g, or give --workers 0."
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 1024:
        said.append(f"A process may open {files} files; workers need more: ulimit -n 4096.")
    return said


def _about_disk(folder: Path, speed: float | None) -> list[str]:
    said: list[str] = []
    free = shutil.disk_usage(folder).free
    if free < 5 * GIB:
        said.append(f"{free / GIB:.1f} GiB of disk are free here: give --run on another disk.")
    if speed is None:
        said.append("This folder cannot be written: give --run where it can be.")
    elif speed < 30e6:
        said.append(
            f"The disk takes {speed / 1e6:.0f} MB/s: a checkpoint may take longer to write than "
            "the steps between two; raise --save-every."
        )
    return said

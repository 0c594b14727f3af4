"""Hardware and software of this machine, and problems for training, for `quintet doctor`."""

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from quintet.engine.machine import memory
from quintet.triton import has_compiler
from quintet.version import __version__

LIBRARIES = ("torch", "accelerate", "safetensors", "numpy", "pillow")
PURPOSES = {
    "tensorboard": "curves in TensorBoard",
    "wandb": "reports to Weights & Biases",
    "trackio": "reports to trackio",
    "hub": "models from and to the Hugging Face Hub",
    "video": "reading and writing videos",
    "audio": "reading and resampling sounds",
    "meshes": "reading .dae and .3mf meshes",
    "text": "a frozen text encoder from a folder",
}
SHARED = Path("/dev/shm")
BLOCK = 4 << 20
MAX_WRITTEN = 128 << 20
"""Maximum bytes written by the disk test."""
MAX_SECONDS = 2.0
"""Maximum duration of the disk test."""
GIB, MIB = 2**30, 2**20


def machine(folder: Path, speed: float | None) -> dict[str, str]:
    """Rows of a table; `speed` is that of the disk, as measured."""
    rows = {"quintet": __version__, "python": platform.python_version()}
    rows["system"] = platform.platform()
    rows |= {name: version(name) or "not installed" for name in LIBRARIES}
    rows["cores"] = f"{usable_cores()} of {os.cpu_count()} usable"
    rows["threads"] = f"{torch.get_num_threads()} in torch"
    rows["memory"] = f"{memory.available() / GIB:.1f} of {memory.total() / GIB:.1f} GiB free"
    rows |= gpus()
    if SHARED.is_dir():
        rows["shared memory"] = f"{shutil.disk_usage(SHARED).free / GIB:.1f} GiB free ({SHARED})"
    rows["disk here"] = f"{shutil.disk_usage(folder).free / GIB:.1f} GiB free"
    rows["disk speed"] = f"{speed / 1e6:.0f} MB/s, synced" if speed else "cannot be written"
    for extra, packages in extras().items():
        installed = [f"{name} {version(name)}" for name in packages if version(name)]
        missing = [name for name in packages if not version(name)]
        state = ", ".join(installed) if not missing else f"pip install 'quintet[{extra}]'"
        rows[f"for {PURPOSES.get(extra, extra)}"] = state
    return rows


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Cores that a container or scheduler allows this process."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpus() -> dict[str, str]:
    if not torch.cuda.is_available():
        return {"gpu": "none that torch sees"}
    rows: dict[str, str] = {}
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        free, _ = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bf16"
        share = f"{free / GIB:.0f} of {facts.total_memory / GIB:.0f} GiB free"
        rows[f"gpu {index}"] = f"{facts.name}, {share}, {bf16}"
    return rows


def extras() -> dict[str, list[str]]:
    """The packages of each optional extra for users; none in a checkout that is not installed."""
    packages: dict[str, list[str]] = {}
    for line in (importlib.metadata.requires("quintet") or []) if version("quintet") else []:
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        package = re.match(r"[\w.-]+", line)
        if extra and package and extra[1] not in ("dev", "docs"):
            packages.setdefault(extra[1], []).append(package[0])
    return packages


def disk_speed(folder: Path) -> float | None:
    """Bytes per second, written and synced; None if the folder is not writable.

    The file has no name, so nothing can be left behind.
    """
    block = os.urandom(BLOCK)  # some disks compress
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            begin, written = time.perf_counter(), 0
            while written < MAX_WRITTEN and time.perf_counter() - begin < MAX_SECONDS:
                written += file.write(block)
                os.fsync(file.fileno())
            return written / (time.perf_counter() - begin)
    except OSError:
        return None


def problems(folder: Path, speed: float | None) -> list[str]:
    """A sentence for each thing that would slow down or break training."""
    return [*_about_device(), *_about_host(), *_about_disk(folder, speed)]


def _about_device() -> Iterator[str]:
    if torch.cuda.is_available():
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            yield "The GPU only emulates bf16: use --precision fp32."
        if not has_compiler():
            yield (
                "There is no C compiler, which Triton needs: steps are neither fused nor compiled, "
                "and take about twice as long; install gcc."
            )
    elif Path("/dev/nvidia0").exists():
        yield (
            f"There is an NVIDIA GPU, but torch {torch.__version__} does not find it: install the "
            "torch build of your CUDA version, and check the output of nvidia-smi."
        )
    else:
        yield (
            "There is no GPU: use the recipes that end in _tiny; the others are too slow on a CPU."
        )


def _about_host() -> Iterator[str]:
    cores, threads = usable_cores(), torch.get_num_threads()
    if threads < cores // 2 and not torch.cuda.is_available():
        yield f"torch uses {threads} of {cores} cores: unset OMP_NUM_THREADS."
    if os.getloadavg()[0] > 1.5 * cores:
        yield f"The machine is busy (load {os.getloadavg()[0]:.1f} on {cores} cores)."
    if memory.available() < 2 * GIB:
        free = memory.available() / GIB
        yield f"{free:.1f} GiB of memory are free: lower --batch-size and --workers."
    if SHARED.is_dir() and shutil.disk_usage(SHARED).free < GIB:
        free = shutil.disk_usage(SHARED).free / MIB
        yield (
            f"{SHARED} has {free:.0f} MiB free, and workers pass batches through it: start the "
            "container with --shm-size 8g, or use --workers 0."
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 1024:
        yield f"A process may open {files} files; workers need more: ulimit -n 4096."


def _about_disk(folder: Path, speed: float | None) -> Iterator[str]:
    free = shutil.disk_usage(folder).free
    if free < 5 * GIB:
        yield f"{free / GIB:.1f} GiB of disk are free here: set --run to another disk."
    if speed is None:
        yield "This folder cannot be written: set --run to a writable folder."
    elif speed < 30e6:
        yield (
            f"The disk writes {speed / 1e6:.0f} MB/s: writing a checkpoint may take longer than "
            "the steps between two; raise --save-every."
        )

"""Disk cache of the outputs of frozen networks, keyed by content.

The caller derives a key from everything that the value depends on: digests of weights, data and
settings, and the arithmetic. Entries are therefore never stale; a changed file has another key.
Values are stored in safetensors files that are named by their digest: a damaged file counts as
missing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from quintet.engine.runs.checkpoint import write_safetensors
from quintet.files import cache_root, partial_name, rename

VALUES_PER_FILE = 4096


def arithmetic(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """For keys: an id near the border of two cells may differ by device and precision."""
    matmul = torch.get_float32_matmul_precision()  # "high" rounds to TF32
    return f"{device.type}-{str(dtype).removeprefix('torch.')}-{matmul}"


class Cache:
    def __init__(self, name: str):
        self.folder = cache_root() / name

    def find(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """The cached values among these keys."""
        missing, values = set(keys), dict[str, Tensor]()
        for path in sorted(self.folder.glob("*.safetensors")):
            if not missing:
                break
            if matching := missing & _names(path):
                content = _read(path)
                values |= {key: content[key] for key in matching if key in content}
                missing -= values.keys()
        return values

    def add(self, values: Mapping[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        keys = sorted(values)
        for begin in range(0, len(keys), VALUES_PER_FILE):
            part = {key: values[key].cpu() for key in keys[begin : begin + VALUES_PER_FILE]}
            partial = partial_name(self.folder / "values")
            digest = write_safetensors(partial, part)
            rename(partial, self.folder / f"{digest}.safetensors")


def _names(path: Path) -> set[str]:
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                return set()
            return set(json.loads(file.read(size)))
    except (OSError, ValueError, TypeError, RecursionError):
        return set()


def _read(path: Path) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
        return load(content) if hashlib.sha256(content).hexdigest() == path.stem else {}
    except (OSError, SafetensorError):
        return {}

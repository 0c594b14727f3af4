"""What a frozen network makes of a sample, computed once and kept on disk, keyed by content.

A key is spelled by the caller from all that the value depends on: digests of weights, of the data
and of the settings between them. So nothing here is ever out of date, and a changed file is simply
another key. Values lie in safetensors shards whose names carry their own digest: a damaged shard is
as good as absent.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from quintet.engine.runs.checkpoint import write_safetensors
from quintet.files import cache_root, partial_name, rename

SHARD = 4096
"""Values in one file."""


class Cache:
    def __init__(self, name: str):
        self.folder = cache_root() / name

    def find(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Those of the keys that are here, with their values."""
        wanted, found = set(keys), dict[str, Tensor]()
        for path in sorted(self.folder.glob("*.safetensors")):
            if not wanted:
                break
            here = wanted & _names(path)
            if here:
                values = _read(path)
                found |= {key: values[key] for key in here if key in values}
                wanted -= found.keys()
        return found

    def add(self, values: Mapping[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        keys = sorted(values)
        for begin in range(0, len(keys), SHARD):
            shard = {key: values[key].cpu() for key in keys[begin : begin + SHARD]}
            partial = partial_name(self.folder / "values")
            digest = write_safetensors(partial, shard)
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
    except OSError:
        return {}
    if hashlib.sha256(content).hexdigest() != path.stem:
        return {}
    try:
        return load(content)
    except SafetensorError:
        return {}

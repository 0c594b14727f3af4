"""Captions from names of folders, and cached embeddings of captions by a frozen text encoder."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.keys import fold
from quintet.engine.runs.cache import Cache, arithmetic
from quintet.engine.task import World
from quintet.media.errors import printable
from quintet.nn.text import FrozenText


class TextTable:
    """Embeddings of captions by a frozen encoder, computed once and cached on disk by content."""

    def __init__(self, config: Any, captions: Sequence[str], world: World):
        if config.text_path is None:
            raise RunError("text is 'frozen'; set text_path to the folder of the encoder")
        path = Path(config.text_path)
        try:
            weights = f"{digest_of(path)}/{config.text_length}"
        except OSError as error:
            raise RunError(f"text_path {path} cannot be read: {error.strerror}") from None
        end = arithmetic(world.device)
        keys = {text: f"{weights}/{fold(text):016x}/{end}" for text in captions}
        cache = Cache("text-embeddings")
        fill = partial(self._fill, cache, path, keys, config.text_length, world)
        world.on_main(fill, expected=(OSError, ValueError, ImportError))
        self.rows = cache.find(keys.values())
        self.keys = keys
        width = next(iter(self.rows.values())).shape[1]
        if width != config.text_dim:
            raise RunError(
                f"text_dim is {config.text_dim}, but the encoder at {path} has width {width}"
            )

    @staticmethod
    def _fill(cache: Cache, path: Path, keys: Mapping[str, str], length: int, world: World) -> None:
        cached = cache.find(keys.values())
        missing = [text for text, key in keys.items() if key not in cached]
        encoder = FrozenText(path, length=length) if missing else None
        for begin in range(0, len(missing), 256):
            texts = missing[begin : begin + 256]
            assert encoder is not None
            values, mask = encoder(texts, world.device)
            cache.add({keys[t]: row[m].cpu() for t, row, m in zip(texts, values, mask)})

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """`text` (b, n, d), zero-padded, and its `mask` (b, n)."""
        rows = [self.rows[self.keys[text]] for text in texts]
        longest = max(len(row) for row in self.rows.values())
        values = torch.zeros(len(rows), longest, rows[0].shape[1])
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for row, value, valid in zip(rows, values, mask):
            value[: len(row)], valid[: len(row)] = row, True
        return {"text": values, "mask": mask}


def digest_of(folder: Path) -> str:
    """Digest of the names and contents of all files of a folder."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def folder_caption(name: str) -> str:
    """`all/office_chair/a.obj` is an "office chair"; a file outside of subfolders has none."""
    above = name.rpartition("/")[0].rpartition("/")[2]
    return printable(above).replace("_", " ").strip()

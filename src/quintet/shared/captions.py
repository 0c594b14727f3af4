"""Captions of a folder: how many there are and how many are cut, those from names of folders, and
cached embeddings by a frozen text encoder."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.data.record import HasTexts
from quintet.engine.errors import RunError
from quintet.engine.keys import fold
from quintet.engine.runs.cache import Cache, arithmetic
from quintet.engine.task import World
from quintet.media.errors import BadFile, printable
from quintet.media.ranges import say
from quintet.media.splits import VALID_FOLDERS, InFolder
from quintet.nn.text import FrozenText, TextSizes
from quintet.shared.code_cache import OfSource

Sizes = Callable[[Sequence[str]], TextSizes]
"""Sizes of texts, as the encoder of a model counts them."""
REMEDY = (
    "give metadata.jsonl with `file_name` and `text` in the folder, or sub-folders named after "
    "what they hold; or train without captions: --model.text none, text='none' of the model"
)


def survey(sources: Sequence[Any], sizes: Sizes, world: World) -> None:
    """Before training: say how many samples of a folder have no caption, and how many captions are
    cut; refuse a folder without any. Built-in samples, and those of a user's data set, have one."""
    folders = [source for source in sources if isinstance(_folder(source), InFolder)]
    if folders:
        world.on_main(lambda: _survey(folders, sizes), (OSError, ValueError, ImportError))


def _folder(source: Any) -> Any:
    return source.source if isinstance(source, OfSource) else source


def _texts(source: Any, index: int) -> Sequence[str]:
    return source.texts(index) if isinstance(source, HasTexts) else [source.text(index)]


def _survey(sources: Sequence[Any], sizes: Sizes) -> None:
    texts: list[str] = []
    missing: list[str] = []
    first, count = _folder(sources[0]), sum(map(len, sources))
    for source in sources:
        for index in range(len(source)):
            try:
                own = _texts(source, index)
            except (OSError, ValueError):
                continue  # reported as damaged, when it is read
            texts += filter(str.strip, own)
            missing += [] if any(map(str.strip, own)) else [source.name(index)]
        if missing and not texts:  # training comes first
            reason = f"none of its {len(source):,} {first.what} for training has a caption"
            raise BadFile(first.folder, reason, REMEDY)
    if missing:
        counts = f"{len(missing):,} of {count:,} {first.what} have no caption"
        named = f"{printable(missing[0])} is the first; they are used without"
        say(f"{printable(first.folder)}: {counts}, {named}")
    if line := sizes(texts).cut_line():
        say(f"{printable(first.folder)}: {line}")


def say_cut(sizes: Sizes, texts: Sequence[str]) -> None:
    """Captions of a user that are cut, as those of training were."""
    distinct = list(dict.fromkeys(texts))
    measured = sizes(distinct)
    for text, size in zip(distinct, measured.sizes):
        if size > measured.most:
            start, count = printable(text[:40]), f"{size:,} {measured.unit}"
            reads = f"the model reads the first {measured.most:,}, as in training"
            say(f"the caption '{start}…' has {count}; {reads}")


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
    """`all/office_chair/a.obj` is an "office chair"; a file outside of subfolders, or in that of a
    split, has none."""
    folder = name.rpartition("/")[0]
    above = "" if folder.lower() in ("train", *VALID_FOLDERS) else folder.rpartition("/")[2]
    return printable(above).replace("_", " ").strip()

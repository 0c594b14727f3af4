"""Check of all files of a data folder, for `quintet doctor`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quintet.media.splits import InFolder, Problem, examined, examined_shards, find


def check_files(
    kind: type[InFolder],
    folder: Path | str,
    settings: Any,
    reader: Callable[[list[Path]], Callable[[Path], object]],
) -> Iterator[tuple[Path, Problem | None]]:
    """Each file of a folder, or each sample of shards, with its problem or None.

    `reader` returns the function that reads one of the files; `kind` opens a split of shards.
    """
    packed = examined_shards(folder, kind.suffixes, lambda split: kind(folder, settings, split, 0))
    if packed is not None:
        return packed
    paths = find(Path(folder), kind.suffixes, kind.what)
    return examined(paths, reader(paths))

"""Texts of the files of a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from quintet.media.errors import BadFile
from quintet.media.sidecars import read_beside, say_absent, texts_beside

T = TypeVar("T")


class FolderTexts(Generic[T]):
    """Texts by file name, from the metadata or from text files beside them, read lazily."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        rows: Mapping[str, T],
        what: str,
        text_files: Mapping[str, str] | None = None,
    ):
        self.folder, self.rows = folder, rows
        self._beside = texts_beside(folder, names) if text_files is None else text_files
        if rows and not self._beside and not any(name in rows for name in names):
            reason = f"its metadata has a text for none of its {len(names)} {what}"
            remedy = "write paths relative to the folder in the column `file_name`"
            raise BadFile(folder, reason, remedy)
        say_absent(folder, rows, names)

    def __contains__(self, name: str) -> bool:
        return name in self.rows or name in self._beside

    def read(self, name: str, what: str) -> str:
        return read_beside(self.folder / self._beside[name], what)

"""Transcripts of a folder: metadata, LJSpeech's table, or a text file next to each recording; and
speakers, from the metadata."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.media.errors import BadFile
from quintet.media.folder import METADATA_MAX_BYTES, read_metadata
from quintet.media.sidecars import with_texts
from quintet.shared.texts import FolderTexts

TABLE = "metadata.csv"
SPEAKER_KEYS = ("speaker", "speaker_id")


class Transcripts(FolderTexts[str]):
    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        texts, self.speakers = _table(folder, names), dict[str, str]()
        if texts is None:
            rows = read_metadata(folder)
            texts = {name: text for name, row in rows.items() if (text := _text(row))}
            self.speakers = {name: who for name, row in rows.items() if (who := speaker(row))}
        super().__init__(folder, names, texts, "recordings")

    def of(self, name: str) -> str:
        """The text as written."""
        return self.rows.get(name) or self.read(name, "the transcript")

    def with_text(self, names: Sequence[str], most: float) -> list[str]:
        """The names that have a text."""
        return with_texts(self.folder, names, self, most, "recordings have no text")


def speaker(row: Mapping[str, Any]) -> str:
    """Of a row of metadata, a name or a number; empty without one."""
    found = next((row[key] for key in SPEAKER_KEYS if row.get(key) not in (None, "")), "")
    return str(found).strip()


def _text(row: Mapping[str, Any]) -> str:
    return str(row.get("text") or "").strip()


# -- LJSpeech -----------------------------------------------------------------------------------


def _table(folder: Path, names: Sequence[str]) -> dict[str, str] | None:
    """Texts by name from lines `id|raw text|normalised text`; None without that table."""
    source = folder / TABLE
    if (folder / "metadata.jsonl").exists() or not source.is_file() or source.is_symlink():
        return None
    if source.stat().st_size > METADATA_MAX_BYTES:
        raise BadFile(source, f"holds more than {METADATA_MAX_BYTES:,} bytes", "split the folder")
    try:
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadFile(source, f"is not UTF-8 ({error.reason})", "save it as UTF-8") from error
    if not lines or "|" not in lines[0] or lines[0].startswith("file_name"):
        return None
    by_stem: dict[str, str] = {}
    for name in names:
        by_stem.setdefault(Path(name).stem, name)
    texts_by_name: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, *texts = line.split("|")
        if not texts:
            reason = f"line {number} has no '|', as the first line has"
            raise BadFile(source, reason, "write lines `id|text`, or a header with `file_name`")
        # Only names found in the folder: an id with a path outside of it matches none.
        name = key if key in names else by_stem.get(Path(key).stem if "." in key else key)
        if name is not None and texts[-1].strip():
            texts_by_name.setdefault(name, texts[-1].strip())
    return texts_by_name

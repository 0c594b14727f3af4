"""Listing of the files of a folder, and its `metadata.jsonl` or `metadata.csv`.

Nothing outside the folder is read: links and paths that lead out are not followed. Runs, exported
models, caches and outputs of commands inside the folder are not data.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from quintet.files import OUTPUTS, outputs_in
from quintet.media.errors import BadFile, printable

METADATA = ("metadata.jsonl", "metadata.csv")
METADATA_MAX_BYTES = 256_000_000
FILE_KEYS = ("file_name", "file", "path")
TEXT_KEYS = ("text", "caption", "captions", "transcript", "sentence")


def require_folder(folder: Path | str) -> Path:
    """The folder as a path; raises BadFile if there is no such folder."""
    path = Path(folder)
    if not path.exists():
        raise BadFile(path, "does not exist", "give the folder that holds the data")
    if not path.is_dir():
        raise BadFile(path, "is a file, not a folder", f"give its folder, {printable(path.parent)}")
    return path


class Listing(NamedTuple):
    """The files of a folder with some suffixes, and counts of skipped ones."""

    names: list[str]
    """Paths relative to the folder, with forward slashes, in a stable order."""
    sizes: list[int]
    """Size of each, in bytes."""
    times: list[int]
    """Modification time of each, in nanoseconds."""
    others: Counter[str]
    """Number of files per requested other suffix."""
    links: int
    """Number of links, to such files or to folders, that lead out of the folder."""
    outputs: int
    """Number of such files that commands of Quintet wrote."""


def listing(
    folder: Path | str,
    suffixes: Iterable[str],
    others: Collection[str] = (),
    outputs: bool = False,
) -> Listing:
    """Regular files with these suffixes (in any case), sub-folders included.

    Hidden files and folders, links that lead out of the folder, links to folders (their files would
    be listed twice) and Quintet's own output (runs, exported models, caches; files that commands
    wrote, unless `outputs`) are skipped.
    """
    root = str(require_folder(folder))
    allowed, inside = {suffix.lower() for suffix in suffixes}, _Inside(Path(root))
    files: list[tuple[str, int, int]] = []
    counts, links, written = Counter[str](), 0, 0
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        entries = _entries(os.path.join(root, parent))
        present = {entry.name for entry in entries}
        marked = OUTPUTS in present and not outputs and outputs_in(os.path.join(root, parent))
        if is_own_output(os.path.join(root, parent), present):
            if not parent:
                remedy = "give the folder that holds the data"
                raise BadFile(root, "is a run, an export or a cache of Quintet, not data", remedy)
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            suffix = entry.name[entry.name.rfind(".") :].lower() if "." in entry.name else ""
            if entry.is_symlink():
                kind = entry.is_dir() or suffix in allowed
                if kind and not inside.holds(Path(entry.path)):
                    links += 1
                    continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{parent}{entry.name}/")
            elif suffix in allowed and marked and entry.name in marked:
                written += 1
            elif suffix in allowed and entry.is_file():
                about = entry.stat()
                files.append((parent + entry.name, about.st_size, about.st_mtime_ns))
            elif suffix in others:
                counts[suffix] += 1
    files.sort()
    names, sizes, times = map(list, zip(*files)) if files else ([], [], [])
    return Listing(names, sizes, times, counts, links, written)


def is_own_output(folder: str, names: Collection[str]) -> bool:
    """Whether a folder with these entries is a run, an exported model or a cache."""
    if "CACHEDIR.TAG" in names:
        return True
    if "config.json" not in names:
        return False
    try:
        with open(os.path.join(folder, "config.json"), "rb") as file:
            about = json.loads(file.read(METADATA_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(about, dict) and "quintet" in about


def _entries(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise BadFile(
            folder, f"cannot be listed ({error.strerror})", "check its permissions"
        ) from error


def files(folder: Path | str, suffixes: Iterable[str]) -> list[Path]:
    """Paths of the files that `listing` finds."""
    root = Path(folder)
    return [root / name for name in listing(root, suffixes).names]


def relative_name(root: Path, path: Path) -> str:
    """The path relative to the root, with forward slashes; a path outside is unchanged."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


class _Inside:
    """Whether paths, after following links, are inside a root; caches folders."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._folders: dict[str, bool] = {}

    def holds(self, path: Path) -> bool:
        if os.path.islink(path):
            return self._under(os.path.realpath(path))
        folder = str(path.parent)
        if folder not in self._folders:
            self._folders[folder] = self._under(os.path.realpath(folder))
        return self._folders[folder]

    def _under(self, real: str) -> bool:
        return os.path.commonpath((self._root, real)) == self._root


def read_metadata(folder: Path | str) -> dict[str, dict[str, Any]]:
    """Metadata rows by file path relative to the folder; empty without metadata.

    `text` is the caption from any of `TEXT_KEYS`, or the first of a list. Other columns are
    unchanged. The first row of a file counts, and `metadata.jsonl` takes precedence over
    `metadata.csv`.
    """
    root = require_folder(folder)
    source = next((root / name for name in METADATA if (root / name).exists()), None)
    if source is None:
        return {}
    inside = _Inside(root)
    _check_source(source, inside)
    rows: dict[str, dict[str, Any]] = {}
    for line, row in table_rows(source):
        name = _file_name(source, line, row, inside)
        rows.setdefault(name, with_text(row))
    return rows


def _check_source(source: Path, inside: _Inside) -> None:
    if not inside.holds(source):
        raise BadFile(source, "is a link that leads out of the folder", "copy the file itself here")
    if not source.is_file():
        raise BadFile(source, "is not a regular file", "remove or rename it")
    size = source.stat().st_size
    if size > METADATA_MAX_BYTES:
        limit = f"{METADATA_MAX_BYTES // 1_000_000} MB"
        raise BadFile(
            source, f"holds {size // 1_000_000} MB, more than {limit}", "split the data folder"
        )


def table_rows(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row with its line number."""
    read = _json_rows if source.suffix == ".jsonl" else _csv_rows
    try:
        yield from read(source)
    except UnicodeDecodeError as error:
        raise BadFile(source, f"is not UTF-8 ({error.reason})", "save it as UTF-8") from error
    except OSError as error:
        raise BadFile(source, f"cannot be read ({error.strerror})", "check the file") from error


def _json_rows(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with source.open(encoding="utf-8-sig") as lines:  # drops a byte-order mark
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply")
                remedy = "write one JSON object per line"
                raise BadFile(source, f"line {number} is not JSON ({reason})", remedy) from error
            if not isinstance(row, dict):
                raise BadFile(
                    source,
                    f"line {number} is not a JSON object",
                    'write lines such as {"file_name": "a.png", "text": "..."}',
                )
            yield number, row


def _csv_rows(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with source.open(encoding="utf-8-sig", newline="") as lines:
        piped = lines.readline().startswith(f"{FILE_KEYS[0]}|")
        lines.seek(0)
        # In a table like LJSpeech's, quotation marks are part of the text.
        ljspeech = csv.DictReader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
        reader = ljspeech if piped else csv.DictReader(lines)
        try:
            for row in reader:
                yield reader.line_num, {key: value for key, value in row.items() if key is not None}
        except csv.Error as error:
            reason = (
                f"line {reader.line_num + 1} is not CSV ({error})"  # line_num counts parsed lines
            )
            raise BadFile(source, reason, "quote fields with commas or line breaks") from error


def _file_name(source: Path, line: int, row: dict[str, Any], inside: _Inside) -> str:
    """The file path of a row, with forward slashes."""
    key = next((key for key in FILE_KEYS if row.get(key)), None)
    if key is None or not isinstance(row[key], str):
        reason = f"line {line} names no file"
        raise BadFile(source, reason, f"give a column `{FILE_KEYS[0]}` with the file's path")
    name = row[key]
    path = PurePosixPath(name.replace("\\", "/"))
    absolute = path.is_absolute() or PureWindowsPath(name).drive
    if absolute or ".." in path.parts or "\0" in name or not inside.holds(source.parent / path):
        raise BadFile(
            source,
            f"line {line}: `{key}` {name!r} leads out of the folder",
            "give paths under the folder, without '..'",
        )
    return path.as_posix()


def with_text(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its caption under `text`, and several under `texts`."""
    row = dict(row)
    key = next((key for key in TEXT_KEYS if row.get(key)), None)
    if key is None:
        return row
    value = row[key]
    if isinstance(value, list):
        row["texts"] = [str(text) for text in value if text]
        row["text"] = next(iter(row["texts"]), "")
    else:
        row["text"] = str(row.pop(key))
    return row

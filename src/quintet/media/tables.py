"""Tables of Hugging Face data sets: parquet files, also at addresses, and folders of
`Dataset.save_to_disk`.

The media column holds structs of `bytes` and `path` (the features Image, Audio and Video), or
bytes. pyarrow (`quintet[parquet]`) reads them; `datasets` itself is not needed. Order, split and
decoding are those of a folder of the same files.
"""

import importlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache, lru_cache
from glob import glob, has_magic
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile
from quintet.media.folder import TEXT_KEYS
from quintet.media.held_out import Contents, Keys, content_digest, keys_of
from quintet.media.ranges import say
from quintet.media.shards.member import Header, Member
from quintet.media.shards.store import Store, StoredFile, StoredStream, store_of
from quintet.suggest import words

PARQUET = ".parquet"
STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""Files that `save_to_disk` writes next to its tables or its folders of splits."""
MEDIA = ("image", "img", "audio", "video", "mesh", "file", "bytes")
"""Names of columns whose plain bytes are media files."""
MAX_COMPARED = 4 << 30
"""Bytes of tables up to which their content is compared with validation data."""
MAX_GROUP = 2 << 30
"""Limit on the decompressed bytes of a row group."""
_SPLIT = re.compile(r"(train|validation|valid|val|test)[-_.]")


def is_table(location: str) -> bool:
    """Whether this is a parquet file, a pattern of them, or a folder with tables in it or, as on
    the Hub, in `data`. Other sub-folders are not listed: a folder may hold a million images."""
    path = Path(location)
    if location.endswith(PARQUET) or (path / SPLITS).is_file():
        return True
    if "://" in location:
        return not location.endswith(".tar") and bool(_at_address(location))
    if (path / STATE).is_file() and (path / INFO).is_file():
        return True
    for folder in (path, path / "data"):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        if any(name.endswith(PARQUET) for name in names):
            return True
    return False


class Table:
    """The samples of all tables, ordered by name."""

    def __init__(self, location: str, window: int, suffixes: Sequence[str], what: str) -> None:
        self.location, self.window = location, window
        self._files = _files(location)
        self._columns = [_media_column(file) for file in self._files]
        names: list[str] = []
        for number, file in enumerate(self._files):
            names += _names(file, self._columns[number], suffixes[0])
        counts = [_rows(file) for file in self._files]
        self._starts = [0, *accumulate(counts)]
        allowed = {suffix.lower() for suffix in suffixes}
        fit = [row for row, name in enumerate(names) if PurePosixPath(name).suffix in allowed]
        if not fit:
            reason = f"holds no {what} ({', '.join(suffixes)})"
            raise BadFile(location, reason, "check the column of the media")
        fit.sort(key=names.__getitem__)
        self._order, self._names = fit, [names[row] for row in fit]
        if len(set(self._names)) < len(self._names):
            raise BadFile(location, "names a file twice", "give each row its own `path`")

    def __len__(self) -> int:
        return len(self._order)

    def _at(self, number: int) -> tuple[int, int]:
        """File of a sample, and its row there."""
        row = self._order[number]
        file = bisect_right(self._starts, row) - 1
        return file, row - self._starts[file]

    def names(self) -> Iterator[bytes]:
        """Names of all samples, in UTF-8."""
        return (name.encode() for name in self._names)

    def name(self, number: int) -> str:
        return self._names[number]

    def has_text(self) -> npt.NDArray[np.bool_]:
        """Mask of the samples with a caption."""
        return np.array([bool(self.row(number).get("text")) for number in range(len(self))])

    def row(self, number: int) -> dict[str, Any]:
        """Metadata of a sample: caption under `text`, several under `texts`."""
        file, row = self._at(number)
        return _metadata(self._files[file], self._columns[file])[row]

    def contents(self, numbers: npt.NDArray[np.int64]) -> Contents:
        """What tells these samples apart; the content of small tables alone, as all is read."""
        real = [file if "://" in file else os.path.realpath(file) for file in self._files]
        places = [f"{real[self._at(n)[0]]}/{self._names[n]}" for n in numbers]
        if sum(map(_size, self._files)) > MAX_COMPARED:
            limit = f"more than {MAX_COMPARED / 1e9:.0f} GB"
            say(f"{self.location}: {limit}, not searched for copies of held-out files; pack it")
            return Contents(len(places), places)

        def digests(chosen: npt.NDArray[np.int64]) -> Keys:
            # In the order of rows, because groups of them are decompressed.
            rows = sorted(chosen.tolist(), key=lambda each: self._order[numbers[each]])
            keys = {each: content_digest(self.path(int(numbers[each]))) for each in rows}
            return keys_of((keys[each], "") for each in chosen.tolist())

        return Contents(len(places), places, digests=digests)

    def path(self, number: int) -> Member:
        """The file as a lazy path, read when opened."""
        file, row = self._at(number)
        label = f"{self._files[file]}/{self._names[number]}"
        load = lambda: _content(self._files[file], self._columns[file], row, label)
        return Member.of(label, -1, load, Header())

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Do nothing: rows are mapped, or read in groups."""


def _pyarrow() -> Any:
    try:
        for name in ("pyarrow.ipc", "pyarrow.parquet"):
            importlib.import_module(name)
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError("tables need pyarrow: pip install 'quintet[parquet]'") from error


def _files(location: str) -> list[str]:
    """The tables at a location, in order."""
    path = Path(location)
    if "://" in location:
        files = _at_address(location)
        splits = {match[1]: location for file in files if (match := _SPLIT.match(Path(file).name))}
        if len(splits) > 1 and not has_magic(location):
            named = {name: f"{files[0].rpartition('/')[0]}/{name}*{PARQUET}" for name in splits}
            raise _several(location, named)
    elif has_magic(location) and not path.exists():
        files = sorted(glob(location))
    elif path.is_file():
        files = [location]
    elif (path / SPLITS).is_file():
        raise _several(path, {p.name: str(p) for p in path.iterdir() if (p / STATE).is_file()})
    elif (path / STATE).is_file():
        listed = json.loads((path / STATE).read_text(encoding="utf-8"))["_data_files"]
        # The last part of the name alone: a path could lead out of the folder.
        files = [str(path / Path(entry["filename"]).name) for entry in listed]
    else:
        files = sorted(str(file) for file in path.rglob(f"*{PARQUET}"))
        named = ((Path(file), _SPLIT.match(Path(file).name)) for file in files)
        splits = {match[1]: _pattern(file, match[0]) for file, match in named if match}
        if len(splits) > 1:
            raise _several(path, splits)
    if not files:
        raise BadFile(location, "names no table", "check the pattern")
    return files


def _at_address(location: str) -> list[str]:
    """The parquet files at an address: of a pattern, of a folder or of its `data`."""
    store = store_of(location)
    if location.endswith(PARQUET):
        folder, _, pattern = location.rpartition("/")
        if not has_magic(pattern):
            return [location]
        return [file.url for file in store.files(folder) if fnmatch(file.name, pattern)]
    for folder in (location, f"{location.rstrip('/')}/data"):
        with suppress(BadFile):
            files = [file.url for file in store.files(folder) if file.name.endswith(PARQUET)]
            if files:
                return files
    return []


@cache
def _stored(file: str) -> tuple[Store, StoredFile]:
    store = store_of(file)
    found = store.find(file)
    if found is None:
        raise BadFile(file, "does not exist", "check the address")
    return store, found


def _source(file: str) -> Any:
    """A parquet file as pyarrow reads it."""
    return StoredStream(*_stored(file)) if "://" in file else file


def _size(file: str) -> int:
    return _stored(file)[1].size


def _several(path: Path | str, splits: dict[str, str]) -> BadFile:
    """The error for a folder with several splits: name one, and another to validate on."""
    order = sorted(splits, key=lambda name: (name != "train", name))
    first, *second = (splits[name] for name in order[:2])
    remedy = f"name one: {words(first, *(['--valid', *second] if second else ()))}"
    return BadFile(path, f"holds several splits ({', '.join(order)})", remedy)


def _pattern(file: Path, begin: str) -> str:
    """All tables of a split whose names begin so; `train.parquet` stands alone."""
    return str(file if file.name == f"{begin}parquet" else file.parent / f"{begin}*{PARQUET}")


@cache
def _mapped(file: str) -> Any:
    """An arrow file, mapped into memory."""
    pa = _pyarrow()
    return pa.ipc.open_stream(pa.memory_map(file)).read_all()


@lru_cache(maxsize=4)
def _group(file: str, group: int, column: str) -> Any:
    """One column of a row group of a parquet file. Random access decodes a group per sample: for
    speed on large data, pack it."""
    opened = _pyarrow().parquet.ParquetFile(_source(file))
    size = opened.metadata.row_group(group).total_byte_size
    if size > MAX_GROUP:
        raise BadFile(file, f"has a row group of {size:,} bytes", "write it with smaller groups")
    return opened.read_row_group(group, columns=[column], use_threads=False).column(0)


def _schema(file: str) -> Any:
    pa = _pyarrow()
    try:
        if file.endswith(PARQUET):
            return pa.parquet.read_schema(_source(file))
        return _mapped(file).schema
    except (OSError, pa.ArrowInvalid) as error:
        raise BadFile(file, f"is damaged ({error})", "copy it again") from error


def _rows(file: str) -> int:
    if file.endswith(PARQUET):
        return _pyarrow().parquet.read_metadata(_source(file)).num_rows
    return len(_mapped(file))


def _media_column(file: str) -> str:
    schema, pa = _schema(file), _pyarrow()
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return field.name
    for field in schema:
        binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
        if binary and field.name.lower() in MEDIA:
            return field.name
    listed = ", ".join(schema.names)
    reason = f"has no column of files (bytes and path) among {listed}"
    raise BadFile(file, reason, "save it with the feature Image, Audio or Video, with its bytes")


def _columns(file: str, names: list[str]) -> Any:
    if file.endswith(PARQUET):
        return _pyarrow().parquet.read_table(_source(file), columns=names, use_threads=False)
    table = _mapped(file)
    return table.select([name for name in names if name in table.column_names])


def _names(file: str, column: str, suffix: str) -> list[str]:
    """The `path` of each row, or its number."""
    kind = _schema(file).field(column).type
    paths: list[str | None] = [None] * _rows(file)
    if _pyarrow().types.is_struct(kind) and kind.get_field_index("path") >= 0:
        if file.endswith(PARQUET):
            leaves = _columns(file, [f"{column}.path"]).column(0).to_pylist()
            # Older versions of pyarrow return structs with that leaf, newer ones the leaf itself.
            paths = [leaf.get("path") if isinstance(leaf, dict) else leaf for leaf in leaves]
        else:
            structs = _mapped(file).column(column).combine_chunks()
            paths = structs.field("path").to_pylist()
    stem = Path(file).stem
    return [_inside(path) or f"{stem}-{row:08d}{suffix}" for row, path in enumerate(paths)]


def _inside(name: str | None) -> str | None:
    """A relative name; only the last part of a path that leads out of the folder."""
    if not name:
        return None
    pure = PurePosixPath(name.replace("\\", "/"))
    return pure.name if pure.is_absolute() or ".." in pure.parts else pure.as_posix()


@cache
def _metadata(file: str, column: str) -> list[dict[str, Any]]:
    """The other columns of text, numbers or lists of text, by row."""
    types, schema = _pyarrow().types, _schema(file)
    plain = lambda kind: types.is_string(kind) or types.is_large_string(kind)
    columns = [
        field.name
        for field in schema
        if field.name != column
        and (
            plain(field.type)
            or types.is_integer(field.type)
            or types.is_floating(field.type)
            or (types.is_list(field.type) and plain(field.type.value_type))
        )
    ]
    rows = _columns(file, columns).to_pylist() if columns else [{} for _ in range(_rows(file))]
    for row in rows:
        value = next((row[key] for key in ("texts", *TEXT_KEYS) if row.get(key)), None)
        if isinstance(value, list):
            row |= {"texts": value, "text": value[0]}
        elif isinstance(value, str):
            row["text"] = value
    return rows


@cache
def _group_starts(file: str) -> list[int]:
    metadata = _pyarrow().parquet.read_metadata(_source(file))
    counts = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return [0, *accumulate(counts)]


def _content(file: str, column: str, row: int, label: str) -> bytes:
    if file.endswith(PARQUET):
        starts = _group_starts(file)
        group = bisect_right(starts, row) - 1
        value = _group(file, group, column)[row - starts[group]].as_py()
    else:
        value = _mapped(file).column(column)[row].as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise BadFile(label, "has no bytes in its row", "save the data set with its files inside")
    return content

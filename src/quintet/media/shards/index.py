"""The index of a shard: offset, length, digest, header and metadata of each sample.

It is a memory-mapped safetensors file of columns, so that a million samples open in a moment. It is
checked against its own length and against the shard before any lookup.
"""

import json
from array import array
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from quintet.media.errors import BadFile
from quintet.media.shards.member import Header

VERSION = 1
SUFFIX = ".index"
MAX_HEADER = 16_000_000
MAX_SHARDS = 10_000_000
"""Maximum number of shards in a set."""
REMEDY = "copy it again, or delete it to rebuild it"
_TYPES = {"U64": "<u8", "U32": "<u4", "U8": "<u1"}
_COLUMNS = {
    "offset": ("U64", ()),
    "length": ("U64", ()),
    "digest": ("U8", (16,)),
    "header": ("U32", (len(Header._fields),)),
    "kind": ("U8", ()),
    "has_text": ("U8", ()),
    "name_end": ("U64", ()),
    "row_end": ("U64", ()),
}

Column = npt.NDArray[Any]


def digest_of(content: bytes) -> bytes:
    return sha256(content).digest()[:16]


class Sample(NamedTuple):
    """One entry of the index."""

    name: str
    offset: int
    length: int
    digest: bytes
    header: Header
    row: dict[str, Any]


def _has_text(row: dict[str, Any]) -> bool:
    """Whether there is a caption."""
    texts = row.get("texts")
    captions = texts if isinstance(texts, list) else [row.get("text") or ""]
    return any(str(text).strip() for text in captions)


class IndexBuilder:
    """Collects samples in order; `content` returns the finished index."""

    def __init__(self) -> None:
        self.suffixes: list[str] = []
        self.numbers = {name: array("Q") for name in ("offset", "length", "name_end", "row_end")}
        self.kinds, self.has_text = bytearray(), bytearray()
        self.header = array("L")
        self.digests, self.names, self.rows = bytearray(), bytearray(), bytearray()

    def add(self, sample: Sample, suffix: str = "") -> None:
        """By default the suffix is that of the name."""
        suffix = suffix or Path(sample.name).suffix.lower()
        if suffix not in self.suffixes:
            self.suffixes.append(suffix)
        self.kinds.append(self.suffixes.index(suffix))
        self.has_text.append(_has_text(sample.row))
        self.names += sample.name.encode("utf-8", "surrogateescape")
        self.rows += json.dumps(sample.row, sort_keys=True, separators=(",", ":")).encode()
        self.digests += sample.digest
        self.header.extend(sample.header)
        numbers = (sample.offset, sample.length, len(self.names), len(self.rows))
        for column, number in zip(self.numbers.values(), numbers):
            column.append(number)

    def content(self, about: dict[str, Any]) -> bytes:
        """Bytes of the file; `about` describes the shard: size, skipped members."""
        columns = {name: np.array(column, "<u8") for name, column in self.numbers.items()}
        columns |= {
            "header": np.array(self.header, "<u4").reshape(-1, len(Header._fields)),
            "digest": np.frombuffer(bytes(self.digests), "<u1").reshape(-1, 16),
        }
        blobs = {
            "kind": self.kinds,
            "has_text": self.has_text,
            "names": self.names,
            "rows": self.rows,
        }
        columns |= {name: np.frombuffer(bytes(blob), "<u1") for name, blob in blobs.items()}
        about = {"version": VERSION, "suffixes": self.suffixes, **about}
        return save(columns, {"quintet": json.dumps(about, sort_keys=True)})


class Packing(NamedTuple):
    """Position of a shard in its set."""

    name: str
    number: int
    total: int


def _packing(about: dict[str, Any]) -> Packing | None:
    if "packing" not in about:
        return None
    packing = Packing(str(about["packing"]), int(about["number"]), int(about["count"]))
    if not 0 <= packing.number < packing.total <= MAX_SHARDS:
        raise ValueError(f"it is number {packing.number} of {packing.total} shards")
    return packing


class Index:
    """The open index of one shard; each column is a view into the file."""

    def __init__(self, path: Path, shard: str, size: int) -> None:
        self.path, self.shard, self.size = path, shard, size
        try:
            self._open()
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            if isinstance(error, BadFile):
                raise
            reason = f"is not a valid index ({str(error)[:100]})"
            raise BadFile(path, reason, REMEDY) from error
        self._check()

    def __reduce__(self) -> Any:
        return Index, (self.path, self.shard, self.size)

    def __len__(self) -> int:
        return len(self.offset)

    def _open(self) -> None:
        content = np.memmap(self.path, np.uint8, "r")
        begin = 8 + int(content[:8].view("<u8")[0]) if len(content) >= 8 else MAX_HEADER
        if not 8 < begin <= min(len(content), MAX_HEADER):
            raise ValueError("it is truncated, or not an index")
        header = json.loads(content[8:begin].tobytes())
        self.about: dict[str, Any] = json.loads(header["__metadata__"]["quintet"])
        self._view = content[begin:]
        self.offset, self.length, self.digest, self.header, self.kind, self.has_text = (
            self._column(header, name) for name in list(_COLUMNS)[:6]
        )
        self.name_end, self.row_end = (self._column(header, f"{n}_end") for n in ("name", "row"))
        self.names, self.rows = (self._column(header, name) for name in ("names", "rows"))
        if self.about["version"] != VERSION:
            raise ValueError(f"its version is {self.about['version']}, not {VERSION}")
        self.suffixes = [str(suffix) for suffix in self.about["suffixes"]]
        self.packing = _packing(self.about)

    def _column(self, header: dict[str, Any], name: str) -> Column:
        kind, width = _COLUMNS.get(name, ("U8", ()))
        about = header[name]
        begin, end = (int(offset) for offset in about["data_offsets"])
        if about["dtype"] != kind or not 0 <= begin <= end <= len(self._view):
            raise ValueError(f"its column {name!r} is truncated")
        return self._view[begin:end].view(_TYPES[kind]).reshape(-1, *width)

    def _check(self) -> None:
        """Check that the index belongs to this shard and stays inside it."""
        if self.about.get("bytes") != self.size:
            reason = f"is for a shard of {self.about.get('bytes')} bytes, but {self.shard} has"
            raise BadFile(
                self.path, f"{reason} {self.size}", "copy both again, or delete the index"
            )
        columns = (self.length, self.digest, self.header, self.kind, self.has_text)
        if any(len(column) != len(self) for column in (*columns, self.name_end, self.row_end)):
            raise BadFile(self.path, "has columns of different lengths", REMEDY)
        last = self.size - self.length
        if bool((self.length > self.size).any()) or bool((self.offset > last).any()):
            raise BadFile(self.path, f"points outside {self.shard}", REMEDY)
        for ends, blob in ((self.name_end, self.names), (self.row_end, self.rows)):
            rising = bool((ends[1:] >= ends[:-1]).all())
            if not rising or int(ends[-1] if len(ends) else 0) != len(blob):
                raise BadFile(self.path, "points outside itself", REMEDY)
        if len(self) and int(self.kind.max()) >= len(self.suffixes):
            raise BadFile(self.path, "has a suffix number out of range", REMEDY)

    # -- looking up -------------------------------------------------------------------------

    def name(self, row: int) -> str:
        return self._text(self.names, self.name_end, row).decode("utf-8", "surrogateescape")

    def row(self, row: int) -> dict[str, Any]:
        """Metadata of a sample."""
        try:
            metadata = json.loads(self._text(self.rows, self.row_end, row))
        except (ValueError, RecursionError):
            return {}
        return metadata if isinstance(metadata, dict) else {}

    def _text(self, blob: Column, ends: Column, row: int) -> bytes:
        begin = int(ends[row - 1]) if row else 0
        return blob[begin : int(ends[row])].tobytes()

    def all_names(self) -> list[bytes]:
        """Names of all samples in order."""
        text, ends = self.names.tobytes(), self.name_end.tolist()
        return [text[begin:end] for begin, end in zip([0, *ends], ends)]

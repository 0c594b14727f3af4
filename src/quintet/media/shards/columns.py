"""Samples of MDS and LitData: the columns that a sample's bytes are cut into, and their values.

Both begin a shard with `uint32 n; uint32 offset[n + 1]`, and a sample with the `uint32` sizes of
its columns. Plain values are decoded, images without a file format become PNG, and pickles are
never opened.
"""

import bz2
import gzip
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile
from quintet.media.tables import MEDIA

Decode = Callable[[bytes], Any]


class Column(NamedTuple):
    """A column; `decode` gives its value or, of one with a `suffix`, a media file."""

    name: str
    decode: Decode | None
    """None for a column that is not read."""
    suffix: str | None = None
    """Suffix of the media files; empty for bytes of any kind, None for values."""
    size: int | None = None
    """Bytes in every sample, if that is not stored with each."""


def never(name: str, head: bytes) -> bool:
    return False


class Chunk(NamedTuple):
    """A file of samples, as the index lists it."""

    names: tuple[str, ...]
    """Its names relative to the index, the preferred one first."""
    samples: int
    columns: tuple[Column, ...]
    size: int | None = None
    """Bytes of the first name, if the index has them."""
    unpack: Decode | None = None
    """Gives a plain chunk from the content of a packed one."""
    packed: Callable[[str, bytes], bool] = never
    """Whether a file is packed, by name and by its first `4 * (samples + 2)` bytes."""
    inflate: Decode | None = None
    """Decompresses a single sample."""


def cut(columns: Sequence[Column], sample: bytes) -> list[bytes]:
    """The bytes of each column."""
    varying = sum(column.size is None for column in columns)
    sizes = iter(np.frombuffer(sample, "<u4", varying).tolist())
    parts, at = list[bytes](), 4 * varying
    for column in columns:
        end = at + (next(sizes) if column.size is None else column.size)
        parts.append(sample[at:end])
        at = end
    if at != len(sample):
        raise ValueError(f"its columns have {at:,} bytes, and it has {len(sample):,}")
    return parts


def joined(samples: Sequence[bytes]) -> bytes:
    """A plain chunk of these samples."""
    ends = np.cumsum([4 * (len(samples) + 2), *map(len, samples)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + ends.tobytes() + b"".join(samples)


def media_column(
    columns: Sequence[Column], suffixes: Sequence[str], what: str, index: str
) -> tuple[int, str]:
    """Number of the column with the files, and their suffix.

    It has a format that the room reads, or holds bytes and is named by a format or a medium, or is
    the only one of bytes. Among several, one named by a medium comes first.
    """
    untyped = [column for column in columns if column.suffix == ""]
    found: list[tuple[bool, int, str]] = []
    for number, column in enumerate(columns):
        name = column.name.lower()
        suffix = column.suffix
        if suffix == "":
            own = f".{name}" if f".{name}" in suffixes else suffixes[0]
            suffix = own if f".{name}" == own or name in MEDIA or len(untyped) == 1 else None
        if suffix is not None and suffix in suffixes:
            found.append((name not in MEDIA, number, suffix))
    if not found:
        listed = ", ".join(f"{c.name} ({_kind(c)})" for c in columns if c.decode)
        reason = f"has no column of {what} ({', '.join(suffixes)}) among {listed or 'its columns'}"
        raise BadFile(
            index, reason, f"name the column of bytes by its format, such as {suffixes[0][1:]}"
        )
    _, number, suffix = min(found)
    return number, suffix


def _kind(column: Column) -> str:
    return "a value" if column.suffix is None else column.suffix or "bytes"


# -- values ---------------------------------------------------------------------------------


def text(data: bytes) -> str:
    return data.decode("utf-8")


def number(kind: str) -> Decode:
    """Decoder of a scalar of a numpy type."""
    return _Scalar(kind).decode


class _Scalar(NamedTuple):
    kind: str

    def decode(self, data: bytes) -> Any:
        return np.frombuffer(data, self.kind, 1)[0].item()


def same(data: bytes) -> bytes:
    return data


def png_of_pil(data: bytes) -> bytes:
    """A PNG of `uint32 width, height, length of mode; mode; pixels`."""
    from PIL import Image

    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii")
    return _png(Image.frombytes(mode, (width, height), data[12 + length :]))


def png_of_array(shape: Sequence[int], pixels: bytes) -> bytes:
    """A PNG of uint8 pixels (h, w), (h, w, c) or (c, h, w)."""
    from PIL import Image

    if len(pixels) != prod(shape) or len(shape) not in (2, 3):
        raise ValueError(f"an array of shape {tuple(shape)} and {len(pixels):,} bytes is no image")
    array: npt.NDArray[np.uint8] = np.frombuffer(pixels, np.uint8).reshape(tuple(shape))
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    return _png(Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array))


def _png(image: Any) -> bytes:
    out = BytesIO()
    plain = image if image.mode in ("1", "L", "LA", "RGB", "RGBA") else image.convert("RGB")
    plain.save(out, "PNG", compress_level=0)  # decoded again at once
    return out.getvalue()


def parsed(data: bytes) -> Any:
    return json.loads(data)


# -- compression ----------------------------------------------------------------------------


def decompressor(compression: str, index: str) -> Decode:
    """The function that undoes a compression such as `zstd:3`."""
    name = compression.partition(":")[0]
    if name == "zstd":
        _zstd()
    known = {"zstd": _unzstd, "gz": gzip.decompress, "bz2": bz2.decompress}
    if name not in known:
        remedy = "write it again without compression, or with zstd, gz or bz2"
        raise BadFile(index, f"its shards are compressed with {name}", remedy)
    return known[name]


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("shards compressed with zstd need `pip install zstandard`") from error
    return zstandard


def _unzstd(data: bytes) -> bytes:
    zstandard = _zstd()
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error

"""MDS, the format of mosaicml-streaming 0.4 and later (its `base/format/mds`).

`index.json` is `{"version": 2, "shards": [...]}`. A shard has `format` "mds", `samples`,
`column_names`, `column_encodings`, `column_sizes` (null where they vary), `raw_data` and, if it is
compressed as a whole, `compression` and `zip_data`; both are `{"basename", "bytes", ...}`. A file
is `uint32 n; uint32 offset[n + 1]; configuration; samples`; a sample is the `uint32` sizes of the
columns that vary, then the columns.
"""

from functools import partial
from typing import Any

import numpy as np

from quintet.media.errors import BadFile
from quintet.media.shards import columns as values
from quintet.media.shards.columns import Chunk, Column, Decode

_SHAPES = ("<u1", "<u2", "<u4", "<u8")
_UINT8 = 8
_INTEGERS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
_SCALARS = [*_INTEGERS, "float16", "float32", "float64"]
_DECODERS: dict[str, tuple[Decode, str | None]] = {
    "bytes": (values.same, ""),
    "jpeg": (values.same, ".jpg"),
    "png": (values.same, ".png"),
    "pil": (values.png_of_pil, ".png"),
    "str": (values.text, None),
    "str_int": (int, None),
    "str_float": (float, None),
    "str_decimal": (values.text, None),
    "json": (values.parsed, None),
    "int": (values.number("<i8"), None),
    **{kind: (values.number(kind), None) for kind in _SCALARS},
}


def chunks(index: dict[str, Any], url: str) -> list[Chunk]:
    """The shards of an index."""
    return [_chunk(shard, url) for shard in index["shards"]]


def _chunk(shard: dict[str, Any], url: str) -> Chunk:
    if shard["format"] != "mds":
        raise BadFile(url, f"lists shards of the format {shard['format']!r}", "write them as MDS")
    keys = ("column_names", "column_encodings", "column_sizes")
    columns = tuple(_column(*each) for each in zip(*(shard[key] for key in keys), strict=True))
    raw, packed = shard["raw_data"], shard["zip_data"]
    samples = int(shard["samples"])
    if not packed:
        return Chunk((raw["basename"],), samples, columns, int(raw["bytes"]))
    names = packed["basename"], raw["basename"]
    return Chunk(
        names,
        samples,
        columns,
        int(packed["bytes"]),
        values.decompressor(shard["compression"], url),
        partial(_is_packed, names[0].rpartition("/")[2]),
    )


def _is_packed(packed: str, name: str, head: bytes) -> bool:
    return name == packed


def _column(name: str, encoding: str, size: int | None) -> Column:
    kind, _, details = encoding.partition(":")
    if kind == "ndarray":
        return Column(name, partial(_image, details), ".png", size)
    decode, suffix = _DECODERS.get(kind, (None, None))
    return Column(name, decode, suffix, size)


def _image(details: str, data: bytes) -> bytes:
    """A PNG of an ndarray: `uint8 type` and `uint8 4 ndim + i; uintN shape[ndim]` where
    `ndarray:type:shape` does not give them."""
    kind, _, sizes = details.partition(":")
    if (kind and kind != "uint8") or (not kind and data[0] != _UINT8):
        raise ValueError(f"an array of {kind or f'type {data[0]}'} is no image, which is uint8")
    data = data if kind else data[1:]
    if sizes:
        return values.png_of_array([int(size) for size in sizes.split(",")], data)
    ndim, width = data[0] >> 2, _SHAPES[data[0] & 3]
    shape = np.frombuffer(data, width, ndim, 1)
    return values.png_of_array(shape.tolist(), data[1 + shape.nbytes :])

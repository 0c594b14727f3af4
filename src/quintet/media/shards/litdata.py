"""LitData, the format of `litdata.optimize` (its `streaming/writer.py` and `serializers.py`).

`index.json` is `{"chunks": [{"filename", "chunk_size", ...}], "config": {...}}`; the configuration
has the serializer of each leaf (`data_format`), their names as a pytree (`data_spec`) and
`compression`. A chunk is `uint32 n; uint32 offset[n + 1]; samples`; a sample is the `uint32` sizes
of all leaves, then the leaves. Newer versions also write packed chunks: compressed as a whole or in
frames of samples, or as an Arrow file after empty samples.
"""

import json
import struct
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from quintet.media.errors import BadFile
from quintet.media.shards import columns as values
from quintet.media.shards.columns import Chunk, Column, Decode

FRAMES, ARROW = b"LDFZ01\0\0", b"LDARW01\0"
"""First bytes of a chunk of compressed frames, last bytes of one with an Arrow file."""
_ENCODE = {
    "str": str.encode,
    "text": str.encode,
    "bytes": bytes,
    "int": struct.Struct("<q").pack,
    "float": struct.Struct("<d").pack,
    "bool": struct.Struct("<?").pack,
}


def chunks(index: dict[str, Any], url: str) -> list[Chunk]:
    """The chunks of an index."""
    about = index["config"]
    if about.get("encryption") or about.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
        reason = "its samples are encrypted" if about.get("encryption") else "holds no files"
        raise BadFile(url, reason, "write it with litdata.optimize and its defaults")
    paths = _paths(json.loads(about["data_spec"])[1])
    kinds = [str(kind) for kind in about["data_format"]]
    columns = tuple(_column(".".join(path), kind) for path, kind in zip(paths, kinds, strict=True))
    inflate = None
    if about["compression"]:
        inflate = values.decompressor(about["compression"], url)
    single = inflate if about.get("compression_level") == "sample" else None
    unpack = partial(_unpack, inflate, paths, kinds)
    return [
        Chunk(
            (chunk["filename"],),
            int(chunk["chunk_size"]),
            columns,
            unpack=unpack,
            packed=_is_packed,
            inflate=single,
        )
        for chunk in index["chunks"]
    ]


def _paths(spec: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of each leaf of a pytree: keys of dicts, numbers in lists."""
    children = spec["children_spec"]
    if spec["type"] is None:
        return [path]
    context = json.loads(spec["context"] or "null")
    keys = context if isinstance(context, list) and len(context) == len(children) else None
    names = map(str, keys or range(len(children)))
    return [leaf for name, child in zip(names, children) for leaf in _paths(child, (*path, name))]


def _column(name: str, kind: str) -> Column:
    kind, _, detail = kind.partition(":")
    if kind in ("image", "audio", "video", "mesh", "file"):
        return Column(name, values.same, f".{detail}" if detail else "")
    decoders: dict[str, tuple[Decode, str | None]] = {
        "bytes": (values.same, ""),
        "jpeg": (values.same, ".jpg"),
        "pil": (values.png_of_pil, ".png"),
        "numpy": (partial(_image, "<", 4), ".png"),
        "tensor": (partial(_image, ">", 11), ".png"),
        "str": (values.text, None),
        "text": (values.text, None),
        "int": (values.number("<i8"), None),
        "float": (values.number("<f8"), None),
        "bool": (values.number("?"), None),
        "json": (_json, None),
    }
    decode, suffix = decoders.get(kind, (None, None))
    return Column(name, decode, suffix)


def _image(order: str, uint8: int, data: bytes) -> bytes:
    """A PNG of `uint32 type, ndim, shape[ndim]; pixels`."""
    kind, ndim = np.frombuffer(data, f"{order}u4", 2).tolist()
    if kind != uint8:
        raise ValueError(f"an array of type {kind} is no image, which is uint8")
    shape = np.frombuffer(data, f"{order}u4", ndim, 8)
    return values.png_of_array(shape.tolist(), data[8 + shape.nbytes :])


def _json(data: bytes) -> Any:
    """JSON or a list of strings; None for the other nested values."""
    if data[:1] > b"\x20":
        return json.loads(data)
    kind, count = struct.unpack_from("<BI", data)
    if kind == 0:
        return json.loads(data[5 : 5 + count])
    texts, at = list[str](), 5
    for _ in range(count if kind == 1 else 0):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : end].decode())
        at = end
    return texts if kind == 1 else None


# -- packed chunks --------------------------------------------------------------------------


def _is_packed(name: str, head: bytes) -> bool:
    """Whether it is compressed as a whole, or in frames, or has only empty samples."""
    return name.count(".") > 1 or head[:8] == FRAMES or head[4:8] == head[-4:]


def _unpack(inflate: Decode | None, paths: Any, kinds: list[str], content: bytes) -> bytes:
    """The plain chunk."""
    if content[-len(ARROW) :] == ARROW:
        return _from_arrow(paths, kinds, content)
    if content[: len(FRAMES)] != FRAMES:
        assert inflate is not None
        return inflate(content)
    return content if inflate is None else _from_frames(inflate, content)


def _from_frames(inflate: Decode, content: bytes) -> bytes:
    """Of `magic; uint16 version, flags; uint32 samples, rows, frames; uint32 offset[samples + 1];
    frames of (uint32 first, count; uint64 begin; uint32 length, plain length)`."""
    samples, _, frames = struct.unpack_from("<III", content, 12)
    offsets = np.frombuffer(content, "<u4", samples + 1, 24).tolist()
    table = struct.iter_unpack("<IIQII", content[28 + 4 * samples :][: 24 * frames])
    body = b"".join(inflate(content[begin : begin + size]) for _, _, begin, size, _ in table)
    return values.joined([body[a:b] for a, b in pairwise(offsets)])


def _from_arrow(paths: Any, kinds: list[str], content: bytes) -> bytes:
    """Of `...; Arrow file or stream; uint32 length; magic`."""
    try:
        import pyarrow as pa
    except ImportError as error:
        reason = "LitData chunks with an Arrow file need pyarrow: pip install 'quintet[parquet]'"
        raise ImportError(reason) from error
    end = len(content) - 12
    arrow = content[end - int.from_bytes(content[end : end + 4], "little") : end]
    opened = pa.ipc.open_file if arrow[:6] == b"ARROW1" else pa.ipc.open_stream
    samples: list[bytes] = []
    for row in opened(pa.py_buffer(arrow)).read_all().to_pylist():
        leaves = [_encoded(row, path, kind) for path, kind in zip(paths, kinds)]
        sizes = struct.pack(f"<{len(leaves)}I", *map(len, leaves))
        samples.append(sizes + b"".join(leaves))
    return values.joined(samples)


def _encoded(row: Any, path: tuple[str, ...], kind: str) -> bytes:
    for key in path:
        row = row[key] if isinstance(row, dict) else row[int(key)]
    if row is None:
        return b""
    return _ENCODE.get(kind, lambda value: json.dumps(value).encode())(row)

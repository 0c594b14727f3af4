"""Triangles of a glTF 2.0 file (.glb or .gltf), from bytes in memory.

No other file is opened: a buffer is the binary chunk or a data: URI. Materials, textures, skins,
morph targets and animations are ignored. What the JSON announces is checked against the bytes and
the limits before it is read, and a mesh counts once per node that shows it, so a small file with a
million instances is rejected at no cost.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from quintet.media.meshes.polygons import CUT, Beyond, Floats, Ints, Limits, Mesh, Unusable

Json = dict[str, Any]
T = TypeVar("T")

MAX_VALUES = 1_000_000
MAX_NODES = 100_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
JSON_CHUNK, BINARY_CHUNK = 0x4E4F534A, 0x004E4942
POINTS_TO_LINES = (0, 1, 2, 3)
TRIANGLES, STRIP, FAN = 4, 5, 6
DTYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
TRANSFORMS = {"matrix", "translation", "rotation", "scale"}
DRACO = "KHR_draco_mesh_compression"
ELSEWHERE = "glTF with buffers in another file, which is not opened"
ONE_FILE = "save it without compression, with everything in the one file"


def read_glb(data: bytes, limits: Limits) -> Mesh:
    """Read the binary form: a header of 12 bytes, a chunk of JSON and a chunk of bytes."""
    text, at, length = _json_of(data, len(data))
    kind, binary, _ = _chunk(data, at) if at + 8 <= length else (0, b"", at)
    return _read(text, binary if kind == BINARY_CHUNK else b"", limits, len(data), _Reader.mesh)


def json_length(head: bytes) -> int:
    """Bytes of a GLB file up to the end of its JSON, from its first 20."""
    return 20 + int.from_bytes(head[12:16], "little")


def _json_of(data: bytes, size: int) -> tuple[bytes, int, int]:
    """The JSON of a GLB file, the offset of the next chunk, and the announced length."""
    if data[:4] != b"glTF" or len(data) < 20:
        raise Unusable("does not begin with the header of a GLB file", "check what kind it is")
    version, length = struct.unpack_from("<II", data, 4)
    if version != 2:
        raise Unusable(f"is glTF version {version}", "save it as glTF 2.0")
    if length > size:
        raise Unusable(f"announces {length:,} bytes but holds {size:,}: it is truncated")
    kind, text, at = _chunk(data, 12)
    if kind != JSON_CHUNK:
        raise Unusable("does not hold JSON in its first chunk")
    return text, at, length


def _chunk(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Type and content of a chunk, and the offset of the next one."""
    length, kind = struct.unpack_from("<II", data, at)
    if at + 8 + length > len(data):
        raise Unusable(f"announces a chunk of {length:,} bytes, but is truncated")
    return kind, data[at + 8 : at + 8 + length], at + 8 + length


def read_gltf(data: bytes, limits: Limits) -> Mesh:
    """Read the text form, with its buffers inside as data: URIs."""
    return _read(data, b"", limits, len(data), _Reader.mesh)


def count_glb(head: bytes, size: int, limits: Limits) -> int:
    """Triangles of a binary file of this size, from its beginning up to the end of its JSON."""
    return _read(_json_of(head, size)[0], b"", limits, size, _Reader.num_faces)


def count_gltf(data: bytes, limits: Limits) -> int:
    """Triangles of a text file."""
    return _read(data, b"", limits, len(data), _Reader.num_faces)


def _read(
    text: bytes, binary: bytes, limits: Limits, size: int, ask: "Callable[[_Reader], T]"
) -> T:
    # A JSON value can take fifty times its text; base64 has none of these characters.
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise Unusable(f"holds more than {MAX_VALUES:,} JSON values", "save it with fewer objects")
    document = json.loads(text.removeprefix(BYTE_ORDER_MARK).decode())
    if not isinstance(document, dict) or "asset" not in document:
        raise Unusable("holds no glTF document", "check what kind of file it is")
    try:
        return ask(_Reader(document, binary, limits, size))
    except (TypeError, AttributeError) as error:  # JSON values may have any type
        raise Unusable(f"has JSON of another kind than glTF's ({error})", CUT) from error


def _natural(holder: Json, key: str, default: int | None = None) -> int:
    value = holder.get(key, default)
    if type(value) is not int or value < 0:
        raise Unusable(f"has no usable `{key}` where one is needed ({str(value)[:40]})")
    return value


def _list(holder: Json, key: str) -> list[Any]:
    value = holder.get(key, [])
    if not isinstance(value, list):
        raise Unusable(f"has `{key}` that is not a list")
    return value


def _numbers(holder: Json, key: str, default: list[float]) -> Floats:
    value = np.array(holder.get(key, default), np.float64)
    if value.shape != (len(default),):
        raise Unusable(f"has a node whose `{key}` is not {len(default)} numbers")
    return value


class _Primitive(NamedTuple):
    mode: int
    positions: int
    indices: int | None
    corners: int

    @property
    def faces(self) -> int:
        return self.corners // 3 if self.mode == TRIANGLES else max(0, self.corners - 2)


class _Counted(NamedTuple):
    shown: list[tuple[int, Floats]]
    primitives: dict[int, list[_Primitive]]
    counts: dict[int, int]


class _Reader:
    def __init__(self, document: Json, binary: bytes, limits: Limits, size: int) -> None:
        self._document = document
        self._binary = binary
        self._limits = limits
        self._size = size
        self._decoded: dict[int, bytes] = {}

    def mesh(self) -> Mesh:
        """All instances of all meshes of the scene, in its coordinates."""
        shown, primitives, counts = self._counted()
        meshes = {index: self._triangles(primitives[index]) for index in primitives}
        self._limits.check_vertices(sum(len(meshes[index].vertices) for index, _ in shown))
        return joined([_moved(meshes[index], matrix) for index, matrix in shown if counts[index]])

    def num_faces(self) -> int:
        """Triangles of the scene, from the JSON alone."""
        shown, _, counts = self._counted()
        return sum(counts[index] for index, _ in shown)

    def _counted(self) -> "_Counted":
        shown = list(self._instances())
        primitives = {index: self._primitives(index) for index, _ in shown}
        counts = {index: sum(each.faces for each in primitives[index]) for index in primitives}
        self._limits.check_faces(sum(counts[index] for index, _ in shown))
        return _Counted(shown, primitives, counts)

    def _item(self, kind: str, index: object) -> Json:
        items = _list(self._document, kind)
        if type(index) is not int or not 0 <= index < len(items):
            raise Unusable(f"refers to {kind}[{str(index)[:40]}] of {len(items)}")
        if not isinstance(items[index], dict):
            raise Unusable(f"has {kind}[{index}] that is not an object")
        return items[index]

    # -- the scene

    def _instances(self) -> Iterator[tuple[int, Floats]]:
        """Mesh index and transform of each node that shows a mesh."""
        nodes = _list(self._document, "nodes")
        if len(nodes) > MAX_NODES:
            raise Unusable(f"has {len(nodes):,} nodes, over {MAX_NODES:,}", "join its objects")
        if not nodes:
            yield from ((at, np.eye(4)) for at in range(len(_list(self._document, "meshes"))))
        waiting = [(root, np.eye(4)) for root in self._roots()]
        seen: set[int] = set()
        while waiting:
            index, parent = waiting.pop()
            node = self._item("nodes", index)
            if index in seen:
                raise Unusable(f"has node {index} in its scene twice; nodes form a tree")
            seen.add(index)
            transform = parent @ _transform(node) if TRANSFORMS & node.keys() else parent
            if "mesh" in node:
                yield _natural(node, "mesh"), transform
            waiting += [(child, transform) for child in reversed(_list(node, "children"))]

    def _roots(self) -> list[Any]:
        """Roots of the default scene; without scenes, the nodes without a parent."""
        if _list(self._document, "scenes"):
            scene = self._item("scenes", self._document.get("scene", 0))
            return list(reversed(_list(scene, "nodes")))
        count = len(_list(self._document, "nodes"))
        below: set[Any] = set()
        for at in range(count):
            below.update(_list(self._item("nodes", at), "children"))
        return [at for at in reversed(range(count)) if at not in below]

    # -- the meshes

    def _primitives(self, mesh: int) -> list[_Primitive]:
        primitives: list[_Primitive] = []
        for each in _list(self._item("meshes", mesh), "primitives"):
            mode = _natural(each, "mode", TRIANGLES)
            attributes = each.get("attributes", {})
            if mode in POINTS_TO_LINES or "POSITION" not in attributes:
                continue
            if mode not in (TRIANGLES, STRIP, FAN):
                raise Unusable(f"has a primitive of the unknown mode {mode}")
            if DRACO in each.get("extensions", {}):
                raise Beyond("", "glTF with Draco compression, which is not read", ONE_FILE)
            positions = _natural(attributes, "POSITION")
            indices = _natural(each, "indices") if "indices" in each else None
            source = positions if indices is None else indices
            corners = self._plain_count(source)
            primitives.append(_Primitive(mode, positions, indices, corners))
        return primitives

    def _plain_count(self, accessor: int) -> int:
        """Values of an accessor whose bytes are in this file; each takes at least one of them."""
        about = self._item("accessors", accessor)
        count = _natural(about, "count")
        if "bufferView" in about:
            view = self._item("bufferViews", about["bufferView"])
            self._check_inside(self._item("buffers", view.get("buffer")))
            if count > self._size:
                raise _outside_view(accessor, count)
        return count

    def _check_inside(self, buffer: Json) -> None:
        uri = buffer.get("uri", "data:")
        if not isinstance(uri, str) or not uri.startswith("data:"):
            raise Beyond("", ELSEWHERE, ONE_FILE)

    def _triangles(self, primitives: list[_Primitive]) -> Mesh:
        return joined([self._triangle(each) for each in primitives if each.faces])

    def _triangle(self, primitive: _Primitive) -> Mesh:
        points = self._values(primitive.positions, "VEC3")
        if primitive.indices is None:
            indices = np.arange(primitive.corners)
        else:
            indices = self._values(primitive.indices, "SCALAR")[:, 0]
            if indices.dtype.kind != "u":
                raise Unusable("has indices that are not unsigned whole numbers")
        faces = _faces(indices.astype(np.int64), primitive.mode)
        if int(faces.max()) >= len(points):
            raise Unusable(f"has a face with vertex {faces.max():,} of {len(points):,}")
        if len(points) > 3 * len(faces):  # many small primitives share one pool of vertices
            used, inverse = np.unique(faces, return_inverse=True)
            points, faces = points[used], inverse.reshape(faces.shape)
        return Mesh(self._scaled(points, primitive.positions), faces)

    def _scaled(self, points: npt.NDArray[Any], accessor: int) -> Floats:
        """Positions in float64; normalised integers (KHR_mesh_quantization) become -1..1."""
        out = points.astype(np.float64)
        if points.dtype.kind in "iu" and self._item("accessors", accessor).get("normalized"):
            out = np.maximum(out / np.iinfo(points.dtype).max, -1)
        return out

    # -- the bytes

    def _values(self, accessor: int, kind: str) -> npt.NDArray[Any]:
        """The rows of an accessor, as a view into its buffer."""
        about = self._item("accessors", accessor)
        if about.get("type") != kind or about.get("componentType") not in DTYPES:
            raise Unusable(f"has accessor {accessor} of another type than {kind}")
        if "sparse" in about or "bufferView" not in about:
            raise Beyond("", "glTF with sparse or compressed (Draco) accessors", ONE_FILE)
        view = self._item("bufferViews", about["bufferView"])
        if "extensions" in view:
            raise Beyond("", "glTF with compressed buffers (meshopt)", ONE_FILE)
        dtype, width = np.dtype(DTYPES[about["componentType"]]), WIDTHS[kind]
        count, size = _natural(about, "count"), dtype.itemsize * width
        stride, offset = _natural(view, "byteStride", size), _natural(about, "byteOffset", 0)
        start, length = _natural(view, "byteOffset", 0), _natural(view, "byteLength")
        buffer = self._buffer(view.get("buffer"))
        if count < 1 or stride < size or offset + (count - 1) * stride + size > length:
            raise _outside_view(accessor, count)
        if start + length > len(buffer):
            raise Unusable(f"has a bufferView of {length:,} bytes outside its buffer")
        steps = (stride, dtype.itemsize)
        return np.ndarray((count, width), dtype, buffer, start + offset, steps)

    def _buffer(self, index: object) -> bytes:
        about = self._item("buffers", index)
        assert isinstance(index, int)
        if index not in self._decoded:
            content = self._content(index, about.get("uri"))
            if _natural(about, "byteLength") > len(content):
                reason = f"announces a buffer of {about['byteLength']:,} bytes"
                raise Unusable(f"{reason}, but holds {len(content):,} of them", CUT)
            self._decoded[index] = content
        return self._decoded[index]

    def _content(self, index: int, uri: object) -> bytes:
        if uri is None and index == 0:
            return self._binary
        if not isinstance(uri, str) or not uri.startswith("data:"):
            raise Beyond("", ELSEWHERE, ONE_FILE)
        head, comma, content = uri.partition(",")
        if not comma or not head.endswith(";base64"):
            raise Unusable("has a data: URI that is not base64", ONE_FILE)
        return base64.b64decode(content, validate=True)


def _outside_view(accessor: int, count: int) -> Unusable:
    return Unusable(f"has accessor {accessor} with {count:,} values outside its bufferView")


def _transform(node: Json) -> Floats:
    """The matrix of a node, or its translation, rotation (quaternion) and scale combined."""
    if "matrix" in node:
        return _numbers(node, "matrix", [0.0] * 16).reshape(4, 4).T
    x, y, z, w = _numbers(node, "rotation", [0.0, 0.0, 0.0, 1.0])
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    transform = np.eye(4)
    transform[:3, :3] = rotation * _numbers(node, "scale", [1.0, 1.0, 1.0])
    transform[:3, 3] = _numbers(node, "translation", [0.0, 0.0, 0.0])
    return transform


def _faces(indices: Ints, mode: int) -> Ints:
    if mode == TRIANGLES:
        return indices[: len(indices) // 3 * 3].reshape(-1, 3)
    if mode == FAN:
        first = np.broadcast_to(indices[:1], len(indices) - 2)
        return np.stack([first, indices[1:-1], indices[2:]], axis=1)
    strip = np.stack([indices[:-2], indices[1:-1], indices[2:]], axis=1)
    strip[1::2] = strip[1::2, ::-1]  # every other triangle of a strip has the opposite winding
    return strip


def _moved(mesh: Mesh, transform: Floats) -> Mesh:
    """The transformed mesh; the winding is kept even under reflection."""
    vertices = mesh.vertices @ transform[:3, :3].T + transform[:3, 3]
    mirrored = np.linalg.det(transform[:3, :3]) < 0
    return Mesh(vertices, mesh.faces[:, ::-1] if mirrored else mesh.faces)


def joined(meshes: list[Mesh]) -> Mesh:
    """Meshes concatenated."""
    if not meshes:
        return Mesh(np.zeros((0, 3)), np.zeros((0, 3), np.int64))
    sizes = [len(each.vertices) for each in meshes]
    starts = np.cumsum([0, *sizes[:-1]])
    faces = [each.faces + start for each, start in zip(meshes, starts)]
    return Mesh(np.concatenate([each.vertices for each in meshes]), np.concatenate(faces))

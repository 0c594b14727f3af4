"""Reader of ply, as text and in both binary forms, from bytes in memory.

It is our own for the reasons in `polygons`. Data other than positions and faces is skipped.
"""

import struct
from array import array
from collections.abc import Callable
from itertools import compress, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.meshes.polygons import (
    Floats,
    Ints,
    Limits,
    Mesh,
    MeshBuilder,
    Unusable,
    fan,
    lines_of,
    polygon_at,
)

MAX_HEADER = 65_536
_NAMES = ("char", "uchar", "short", "ushort", "int", "uint", "float", "double")
_SIZED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
_TYPES: dict[str, str] = dict(zip(_NAMES + _SIZED, "bBhHiIfd" * 2))
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_INDICES = ("vertex_indices", "vertex_index")


class _Property(NamedTuple):
    name: str
    code: str
    length: str  # type of the length of a list; empty for a scalar


class _Element(NamedTuple):
    name: str
    rows: int
    properties: list[_Property]

    @property
    def ragged(self) -> bool:
        return any(each.length for each in self.properties)

    def column(self, *names: str) -> int:
        """Index of the first property with one of these names, or -1."""
        matches = (at for at, each in enumerate(self.properties) if each.name in names)
        return next(matches, -1)

    def row(self, order: str) -> np.dtype[np.void]:
        return np.dtype([(f"{at}", order + each.code) for at, each in enumerate(self.properties)])

    def least_bytes(self, order: str) -> int:
        codes = [each.length or each.code for each in self.properties]
        return sum(struct.calcsize(order + code) for code in codes) if order else 2 * len(codes)


def read_ply(data: bytes, limits: Limits) -> Mesh:
    """Positions and faces of a text or binary file."""
    order, elements, start = _ply_header(data)
    _check_ply(elements)
    _check_size(order, elements, start, len(data))
    _check_limits(elements, limits)
    if order:
        return _ply_binary(data, start, order, elements, limits)
    return _ply_text(data[start:], elements, limits)


Pick = Callable[[int], npt.NDArray[np.bool_]]
"""From the number of rows, which of them to read."""


def is_cloud(data: bytes) -> bool:
    """Whether a file has no faces."""
    return not any(each.rows and each.name != "vertex" for each in _ply_header(data)[1])


def read_ply_points(data: bytes, pick: Pick) -> Floats:
    """(n, 3) positions of a file without faces, or (n, 6) with normals."""
    order, elements, start = _ply_header(data)
    _check_vertices(elements)
    _check_size(order, elements, start, len(data))
    vertex = next(each for each in elements if each.name == "vertex")
    names = ("x", "y", "z", "nx", "ny", "nz")
    columns = [vertex.column(name) for name in names if vertex.column(name) >= 0]
    columns = columns if len(columns) == 6 else columns[:3]
    drawn = pick(vertex.rows)
    if order:
        rows = np.frombuffer(data, vertex.row(order), vertex.rows, start)[drawn]
        return np.stack([rows[f"{at}"].astype(np.float64) for at in columns], axis=1)
    values, lines = array("d"), lines_of(data[start:])
    for tokens in compress(islice(lines, vertex.rows), drawn):
        values.extend(float(tokens[at]) for at in columns)
    if len(values) < len(columns) * drawn.sum():
        raise _truncated(vertex)
    return np.array(values).reshape(-1, len(columns))


def _ply_header(data: bytes) -> tuple[str, list[_Element], int]:
    end = data.find(b"end_header", 0, MAX_HEADER)
    if data[:3] != b"ply" or end < 0:
        raise Unusable("does not begin with the header of a PLY file", "check what kind it is")
    lines = [line.split() for line in data[:end].decode("ascii", "replace").splitlines()]
    order: str | None = None
    elements: list[_Element] = []
    for tokens in lines[1:]:
        match tokens:
            case ["format", name, *_] if name in _ORDERS:
                order = _ORDERS[name]
            case ["element", name, count]:
                elements.append(_Element(name, int(count), []))
            case ["property", "list", count, code, name] if elements:
                new = _Property(name, _TYPES[code], _TYPES[count])
                elements[-1].properties.append(new)
            case ["property", code, name] if elements:
                elements[-1].properties.append(_Property(name, _TYPES[code], ""))
            case [] | ["comment", *_] | ["obj_info", *_]:
                pass
            case _:
                raise Unusable(f"has an unknown header line: {' '.join(tokens)[:80]}")
    if order is None:
        raise Unusable("does not state its format (ascii or binary)")
    start = end + len(b"end_header")
    start += 2 if data[start : start + 2] == b"\r\n" else 1
    return order, elements, start


def count_ply(head: bytes, size: int) -> int | None:
    """An upper bound on the triangles, from the first `MAX_HEADER` bytes of a file and its size;
    None if that needs the whole file."""
    order, elements, start = _ply_header(head)
    _check_ply(elements)
    _check_size(order, elements, start, size)
    face = next(each for each in elements if each.name == "face")
    if not order or sum(bool(p.length) for each in elements for p in each.properties) != 1:
        return None
    rest = size - start - sum(each.rows * each.least_bytes(order) for each in elements)
    corner = struct.calcsize(order + face.properties[face.column(*_INDICES)].code)
    return max(face.rows, rest // corner - 2 * face.rows)


def _check_size(order: str, elements: list[_Element], start: int, size: int) -> None:
    """Refuse a file that announces more than it holds; called before the limits, because such a
    file is damaged, not large."""
    least = sum(each.rows * each.least_bytes(order) for each in elements)
    if least > size - start + 1:
        counts = ", ".join(f"{each.rows:,} x {each.name}" for each in elements[:8])
        raise Unusable(f"announces {counts}: more than its {size:,} bytes can hold")


def _check_limits(elements: list[_Element], limits: Limits) -> None:
    limits.check_vertices(sum(each.rows for each in elements if each.name == "vertex"))
    for each in elements:
        if each.ragged:
            limits.check_faces(each.rows)


def _check_vertices(elements: list[_Element]) -> dict[str, _Element]:
    named = {each.name: each for each in elements}
    if len(named) < len(elements) or any(each.rows < 0 for each in elements):
        raise Unusable("announces an element twice, or a negative number of rows")
    vertex = named.get("vertex")
    if vertex is None or min(vertex.column(axis) for axis in "xyz") < 0:
        raise Unusable("has no vertices with x, y and z", "save it as a mesh")
    if vertex.ragged:
        raise Unusable("has vertices of a form that is not supported", "save it again")
    return named


def _check_ply(elements: list[_Element]) -> None:
    """Vertices must have coordinates, and faces integer indices."""
    named = _check_vertices(elements)
    if "tristrips" in named:
        raise Unusable("holds triangle strips", "save it with plain faces")
    face = named.get("face")
    if face is None or face.rows == 0 or face.column(*_INDICES) < 0:
        raise Unusable("holds points but no faces", "save it as a mesh, not as a point cloud")
    for each in elements:
        if any(part.length in tuple("fd") for part in each.properties if part.length):
            raise Unusable("has lists whose length is not a whole number")
    indices = face.properties[face.column(*_INDICES)]
    if not indices.length or indices.code in "fd":
        raise Unusable("has faces of a form that is not supported", "save it again")


def _ply_text(body: bytes, elements: list[_Element], limits: Limits) -> Mesh:
    lines, builder = lines_of(body), MeshBuilder(limits)
    for element in elements:
        axes = [element.column(axis) for axis in "xyz"]
        for _ in range(element.rows if element.properties else 0):
            tokens = next(lines, None)
            if tokens is None:
                raise _truncated(element)
            if element.name == "vertex":
                builder.points.extend(float(tokens[axis]) for axis in axes)
            elif element.name == "face":
                builder.add_polygon(polygon_at(tokens, _start_of_face(tokens, element)))
    return builder.mesh()


def _truncated(element: _Element) -> Unusable:
    return Unusable(f"is truncated among its {element.rows:,} rows of {element.name}")


def _start_of_face(tokens: list[bytes], element: _Element) -> int:
    """Position of the vertex indices in a row of text."""
    at = 0
    for each in element.properties[: element.column(*_INDICES)]:
        at += 1 + (int(tokens[at]) if each.length else 0)
        if at < 0:
            raise Unusable("has a list of negative length")
    return at


def _ply_binary(
    data: bytes, start: int, order: str, elements: list[_Element], limits: Limits
) -> Mesh:
    vertices, faces = np.zeros((0, 3)), np.zeros((0, 3), np.int64)
    for element in elements:
        if element.ragged:
            corners, sizes, start = _ply_lists(data, start, order, element, limits)
            if element.name == "face":
                faces = fan(corners, sizes, limits)
            continue
        row = element.row(order)
        if start + row.itemsize * element.rows > len(data):
            raise _truncated(element)
        if element.name == "vertex":
            rows = np.frombuffer(data, row, element.rows, start)
            axes = [rows[f"{element.column(axis)}"] for axis in "xyz"]
            vertices = np.stack(axes, axis=1).astype(np.float64)
        start += row.itemsize * element.rows
    return Mesh(vertices, faces)


def _ply_lists(
    data: bytes, start: int, order: str, element: _Element, limits: Limits
) -> tuple[Ints, Ints, int]:
    """Corners and sizes of the rows, and the offset of their end.

    Rows of equal size, as in nearly every file, are read at once, otherwise one by one.
    """
    indices = element.column(*_INDICES)
    lengths = _first_lengths(data, start, order, element) if element.rows else []
    columns: list[tuple[str, str] | tuple[str, str, tuple[int]]] = []
    for at, (each, length) in enumerate(zip(element.properties, lengths)):
        if each.length:
            columns += [(f"n{at}", order + each.length), (f"{at}", order + each.code, (length,))]
        else:
            columns.append((f"{at}", order + each.code))
    size = np.dtype(columns).itemsize
    if size * element.rows <= len(data) - start:
        rows = np.frombuffer(data, np.dtype(columns), element.rows, start)
        lists = [at for at, each in enumerate(element.properties) if each.length]
        if lengths and all((rows[f"n{at}"] == lengths[at]).all() for at in lists):
            count = lengths[indices] if indices >= 0 else 0
            limits.check_faces((count - 2) * element.rows)
            corners = rows[f"{indices}"].astype(np.int64).reshape(-1) if indices >= 0 else _NONE
            return corners, np.full(element.rows, count), start + size * element.rows
    return _ply_walk(data, start, order, element, limits)


_NONE = np.zeros(0, np.int64)


def _first_lengths(data: bytes, at: int, order: str, element: _Element) -> list[int]:
    """Lengths of the lists in the first row; 0 for scalars."""
    lengths: list[int] = []
    for each in element.properties:
        length, at = _length(data, at, order, each)
        lengths.append(length)
    return lengths


def _length(data: bytes, at: int, order: str, part: _Property) -> tuple[int, int]:
    """Length of a list (0 for a scalar), and the offset of its end."""
    width = struct.calcsize(order + part.code)
    if not part.length:
        return 0, at + width
    begin = at + struct.calcsize(order + part.length)
    length = struct.unpack_from(order + part.length, data, at)[0] if begin <= len(data) else -1
    end = begin + width * length
    if length < 0 or end > len(data):
        raise Unusable("is truncated: a list is longer than the rest of the file")
    return length, end


def _ply_walk(
    data: bytes, at: int, order: str, element: _Element, limits: Limits
) -> tuple[Ints, Ints, int]:
    builder, indices = MeshBuilder(limits), element.column(*_INDICES)
    for _ in range(element.rows):
        for column, part in enumerate(element.properties):
            length, end = _length(data, at, order, part)
            if column == indices and part.length:
                limits.check_faces(length - 2)  # before memory is allocated for the indices
                begin = end - length * struct.calcsize(order + part.code)
                corners = struct.unpack_from(f"{order}{length}{part.code}", data, begin)
                builder.add_polygon(corners)
            at = end
    if at > len(data):
        raise _truncated(element)
    return np.array(builder.corners, np.int64), np.array(builder.sizes, np.int64), at

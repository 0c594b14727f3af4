"""Reader of ply, in text and in both binary forms, from bytes in memory.

Our own for the same reasons as in `polygons`. Of each row only what makes the mesh is kept.
"""

import struct
from array import array
from typing import NamedTuple

import numpy as np

from quintet.media.meshes.polygons import (
    Ints,
    Limits,
    Mesh,
    Unusable,
    add_polygon,
    fan,
    lines_of,
    long_of,
    points_of,
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
    length: str  # the type of a list's length; empty for a plain number


class _Element(NamedTuple):
    name: str
    rows: int
    properties: list[_Property]

    @property
    def ragged(self) -> bool:
        return any(each.length for each in self.properties)

    def column(self, *names: str) -> int:
        """Where the first property of such a name stands; -1 for nowhere."""
        found = [at for at, each in enumerate(self.properties) if each.name in names]
        return found[0] if found else -1

    def least_bytes(self, order: str) -> int:
        codes = [each.length or each.code for each in self.properties]
        return sum(struct.calcsize(order + code) for code in codes) if order else 2 * len(codes)


def read_ply(data: bytes, limits: Limits) -> Mesh:
    """Text and both binary forms; of every row only the position, or the corners, is kept."""
    order, elements, start = _ply_header(data)
    _check_ply(elements, limits)
    least = sum(each.rows * each.least_bytes(order) for each in elements)
    if least > len(data) - start + 1:
        counts = ", ".join(f"{each.rows:,} x {each.name}" for each in elements[:8])
        raise Unusable(f"announces {counts}: more than its {len(data):,} bytes can hold")
    if order:
        return _ply_binary(data, start, order, elements, limits)
    return _ply_text(data[start:], elements, limits)


def _ply_header(data: bytes) -> tuple[str, list[_Element], int]:
    end = data.find(b"end_header", 0, MAX_HEADER)
    if data[:3] != b"ply" or end < 0:
        raise Unusable("does not begin with the header of a PLY file", "check what kind it is")
    lines = [line.split() for line in data[:end].decode("ascii", "replace").splitlines()]
    order: str | None = None
    elements: list[_Element] = []
    for words in lines[1:]:
        match words:
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
                raise Unusable(f"has a header line that PLY does not know: {' '.join(words)[:80]}")
    if order is None:
        raise Unusable("does not say its format (ascii or binary)")
    start = end + len(b"end_header")
    start += 2 if data[start : start + 2] == b"\r\n" else 1
    return order, elements, start


def _check_ply(elements: list[_Element], limits: Limits) -> None:
    """That there are vertices with coordinates and faces with whole indices, and not too many."""
    named = {each.name: each for each in elements}
    if len(named) < len(elements) or any(each.rows < 0 for each in elements):
        raise Unusable("announces an element twice, or a negative number of rows")
    if "tristrips" in named:
        raise Unusable("holds triangle strips", "save it with plain faces")
    vertex, face = named.get("vertex"), named.get("face")
    if vertex is None or min(vertex.column(axis) for axis in "xyz") < 0:
        raise Unusable("has no vertices with x, y and z", "save it as a mesh")
    if face is None or face.rows == 0 or face.column(*_INDICES) < 0:
        raise Unusable("holds points but no faces", "save it as a mesh, not as a point cloud")
    limits.check_vertices(vertex.rows)
    for each in elements:
        if each.ragged:
            limits.check_faces(each.rows)
        if any(part.length in tuple("fd") for part in each.properties if part.length):
            raise Unusable("has lists whose length is not a whole number")
    indices = face.properties[face.column(*_INDICES)]
    if vertex.ragged or not indices.length or indices.code in "fd":
        raise Unusable("has vertices or faces of a form that is not supported", "save it again")


def _ply_text(body: bytes, elements: list[_Element], limits: Limits) -> Mesh:
    lines = lines_of(body)
    points, corners, sizes = array("d"), array("q"), array("q")
    for element in elements:
        axes = [element.column(axis) for axis in "xyz"]
        for _ in range(element.rows if element.properties else 0):
            words = next(lines, None)
            if words is None:
                raise Unusable(f"is cut off among its {element.rows:,} rows of {element.name}")
            if element.name == "vertex":
                points.extend(float(words[axis]) for axis in axes)
            elif element.name == "face":
                _ply_text_face(words, element, corners, sizes, limits)
    return Mesh(points_of(points), fan(long_of(corners), long_of(sizes), limits))


def _ply_text_face(
    words: list[bytes],
    element: _Element,
    corners: "array[int]",
    sizes: "array[int]",
    limits: Limits,
) -> None:
    at = 0
    for each in element.properties:
        if each.name in _INDICES:
            add_polygon(words, at, corners, sizes, limits)
            return
        at += 1 + (int(words[at]) if each.length else 0)
        if at < 0:
            raise Unusable("has a list of negative length")


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
        columns = [(f"{at}", order + each.code) for at, each in enumerate(element.properties)]
        row = np.dtype(columns)
        if start + row.itemsize * element.rows > len(data):
            raise Unusable(f"is cut off among its {element.rows:,} rows of {element.name}")
        if element.name == "vertex":
            rows = np.frombuffer(data, row, element.rows, start)
            axes = [rows[f"{element.column(axis)}"] for axis in "xyz"]
            vertices = np.stack(axes, axis=1).astype(np.float64)
        start += row.itemsize * element.rows
    return Mesh(vertices, faces)


def _ply_lists(
    data: bytes, start: int, order: str, element: _Element, limits: Limits
) -> tuple[Ints, Ints, int]:
    """Corners and sizes of the rows, and where they end.

    Rows of one shape, which is nearly every file, are read in one go; otherwise one by one.
    """
    wanted = element.column(*_INDICES)
    lengths = _first_lengths(data, start, order, element) if element.rows else []
    columns: list[tuple[str, str] | tuple[str, str, tuple[int]]] = []
    for at, (each, length) in enumerate(zip(element.properties, lengths)):
        if each.length:
            columns += [(f"n{at}", order + each.length), (f"{at}", order + each.code, (length,))]
        else:
            columns.append((f"{at}", order + each.code))
    size = _row_size(order, element, lengths)
    if size * element.rows <= len(data) - start:
        rows = np.frombuffer(data, np.dtype(columns), element.rows, start)
        lists = [at for at, each in enumerate(element.properties) if each.length]
        if lengths and all((rows[f"n{at}"] == lengths[at]).all() for at in lists):
            count = lengths[wanted] if wanted >= 0 else 0
            limits.check_faces((count - 2) * element.rows)
            corners = rows[f"{wanted}"].astype(np.int64).reshape(-1) if wanted >= 0 else _NONE
            return corners, np.full(element.rows, count), start + size * element.rows
    return _ply_walk(data, start, order, element, limits)


_NONE = np.zeros(0, np.int64)


def _row_size(order: str, element: _Element, lengths: list[int]) -> int:
    size = element.least_bytes(order)
    for each, length in zip(element.properties, lengths):
        size += struct.calcsize(order + each.code) * length if each.length else 0
    return size


def _first_lengths(data: bytes, at: int, order: str, element: _Element) -> list[int]:
    """Lengths of the lists of the first row; 0 for a plain number."""
    lengths: list[int] = []
    for each in element.properties:
        length, at = _length(data, at, order, each)
        lengths.append(length)
    return lengths


def _length(data: bytes, at: int, order: str, part: _Property) -> tuple[int, int]:
    """The length of a list, 0 for a plain number, and where the property ends."""
    width = struct.calcsize(order + part.code)
    if not part.length:
        return 0, at + width
    begin = at + struct.calcsize(order + part.length)
    length = struct.unpack_from(order + part.length, data, at)[0] if begin <= len(data) else -1
    end = begin + width * length
    if length < 0 or end > len(data):
        raise Unusable("is cut off: a list is longer than what is left of the file")
    return length, end


def _ply_walk(
    data: bytes, at: int, order: str, element: _Element, limits: Limits
) -> tuple[Ints, Ints, int]:
    corners, sizes = array("q"), array("q")
    wanted = element.column(*_INDICES)
    for _ in range(element.rows):
        for column, part in enumerate(element.properties):
            length, end = _length(data, at, order, part)
            if column == wanted and part.length:
                if len(corners) + length > 5 * limits.faces:
                    limits.check_faces(len(corners) + length - 2 * len(sizes) - 2)
                begin = end - length * struct.calcsize(order + part.code)
                corners.extend(struct.unpack_from(f"{order}{length}{part.code}", data, begin))
                sizes.append(length)
            at = end
    if at > len(data):
        raise Unusable(f"is cut off among its {element.rows:,} rows of {element.name}")
    return long_of(corners), long_of(sizes), at

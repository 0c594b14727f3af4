"""Readers of obj, off and stl, from bytes in memory: no reader here can open another file.

They are our own because a file is a stranger's: general libraries allocate what a header announces,
follow the names of material files, and parse text in ways that take many times its size. Here what
a header announces is held against the bytes that are there before anything is allocated, and text
is read line by line. What a reader cannot use it refuses with `Unusable`.
"""

from array import array
from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_LINE = 1_000_000
CUT = "copy it again, or save it again from the program that made it"


class Unusable(Exception):
    """Why the bytes make no mesh, and what to do about it; the caller knows the path."""

    def __init__(self, reason: str, remedy: str = CUT) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


class Mesh(NamedTuple):
    vertices: Floats  # (v, 3)
    faces: Ints  # (f, 3)


class Limits(NamedTuple):
    faces: int
    vertices: int

    def check_faces(self, count: int) -> None:
        if count > self.faces:
            raise Unusable(
                f"has {count:,} faces or more, over max_faces = {self.faces:,}",
                "simplify it, or raise max_faces",
            )

    def check_vertices(self, count: int) -> None:
        if count > self.vertices:
            raise Unusable(
                f"has {count:,} vertices or more, over {self.vertices:,}", "simplify it or split it"
            )


def fan(corners: Ints, sizes: Ints, limits: Limits) -> Ints:
    """Polygons, one after another, as triangles around their first corners.

    A polygon of fewer than three corners is a point or a line, and gives none.
    """
    triangles = np.maximum(sizes - 2, 0)
    total = int(triangles.sum())
    limits.check_faces(total)
    first = np.repeat(np.cumsum(sizes) - sizes, triangles)
    step = np.arange(total) - np.repeat(np.cumsum(triangles) - triangles, triangles)
    return np.stack([corners[first], corners[first + step + 1], corners[first + step + 2]], axis=1)


def lines_of(data: bytes) -> Iterator[list[bytes]]:
    """The words of each line, without comments and empty lines."""
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    for line in BytesIO(data):
        if len(line) > MAX_LINE:
            raise Unusable(f"has a line of {len(line):,} bytes", "save it with shorter lines")
        if b"#" in line:
            line = line[: line.index(b"#")]
        if words := line.split():
            yield words


def points_of(values: "array[float]") -> Floats:
    return np.array(values, np.float64).reshape(-1, 3)


def long_of(values: "array[int]") -> Ints:
    return np.array(values, np.int64)


# -- obj ------------------------------------------------------------------------------------


def read_obj(data: bytes, limits: Limits) -> Mesh:
    """Vertices and faces of all objects and groups; `mtllib` and the rest are passed over."""
    limits.check_faces(data.count(b"\nf "))
    limits.check_vertices(data.count(b"\nv "))
    if b"\\\n" in data or b"\\\r\n" in data:
        data = data.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
    points, corners, sizes = array("d"), array("q"), array("q")
    for words in lines_of(data):
        if words[0] == b"v":
            if len(words) < 4:
                raise Unusable(f"vertex {len(points) // 3 + 1} has {len(words) - 1} coordinates")
            points.extend(map(float, words[1:4]))
        elif words[0] == b"f":
            if len(words) < 4:
                raise Unusable(f"face {len(sizes) + 1} has {len(words) - 1} corners")
            corners.extend(_obj_corners(words, len(points) // 3))
            sizes.append(len(words) - 1)
            if len(corners) > 3 * limits.faces:
                limits.check_faces(len(corners) - 2 * len(sizes))
        if len(points) > 3 * limits.vertices:
            limits.check_vertices(len(points) // 3)
    return Mesh(points_of(points), fan(long_of(corners), long_of(sizes), limits))


def _obj_corners(words: list[bytes], seen: int) -> list[int]:
    """Indices from 0; the format counts from 1, and with minus signs back from the last vertex."""
    found = [int(word.split(b"/", 1)[0]) for word in words[1:]]
    if 0 in found:
        raise Unusable("has a face with vertex 0; obj counts from 1", CUT)
    return [at - 1 if at > 0 else seen + at for at in found]


# -- off ------------------------------------------------------------------------------------


def read_off(data: bytes, limits: Limits) -> Mesh:
    """The text form, with or without colours, normals and texture coordinates."""
    lines = lines_of(data)
    words = _off_start(next(lines, []))
    words = words or next(lines, [])
    if len(words) < 2:
        raise Unusable("has no line with the numbers of vertices and faces")
    vertices, faces = int(words[0]), int(words[1])
    if vertices < 0 or faces < 0:
        raise Unusable(f"announces {vertices:,} vertices and {faces:,} faces")
    limits.check_faces(faces)
    limits.check_vertices(vertices)
    if 6 * vertices + 2 * faces > len(data) + 1:
        raise Unusable(f"announces {vertices:,} vertices and {faces:,} faces, but is cut off")
    points, corners, sizes = array("d"), array("q"), array("q")
    for _ in range(vertices):
        points.extend(_three(next(lines, [])))
    for _ in range(faces):
        add_polygon(next(lines, []), 0, corners, sizes, limits)
    return Mesh(points_of(points), fan(long_of(corners), long_of(sizes), limits))


def _off_start(words: list[bytes]) -> list[bytes]:
    """What follows the keyword on its line: some writers put the counts there, without a space."""
    keyword = words[0] if words else b""
    end = keyword.find(b"OFF") + 3
    if end < 3 or keyword[: end - 3] not in (b"", b"C", b"N", b"CN", b"ST", b"STC", b"STN"):
        raise Unusable("does not begin with OFF", "check what kind of file it is")
    rest = [keyword[end:]] if keyword[end:] else []
    if words[1:2] == [b"BINARY"]:
        raise Unusable("is a binary OFF file", "save it as text, or as ply")
    return rest + words[1:]


def _three(words: list[bytes]) -> tuple[float, float, float]:
    if len(words) < 3:
        raise Unusable("is cut off: a vertex is missing or has fewer than three coordinates")
    return float(words[0]), float(words[1]), float(words[2])


def add_polygon(
    words: list[bytes], at: int, corners: "array[int]", sizes: "array[int]", limits: Limits
) -> int:
    """Append the list of indices that begins at a word, and say where it ends."""
    count = int(words[at]) if at < len(words) else -1
    end = at + 1 + count
    if count < 0 or end > len(words):
        raise Unusable("is cut off: a face is missing or has fewer corners than it says")
    corners.extend(map(int, words[at + 1 : end]))
    sizes.append(count)
    if len(corners) > 5 * limits.faces:
        limits.check_faces(len(corners) - 2 * len(sizes))
    return end


# -- stl ------------------------------------------------------------------------------------

_FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_stl(data: bytes, limits: Limits) -> Mesh:
    """Three vertices of its own for each face, as the format has them; merging is the caller's."""
    count = int.from_bytes(data[80:84], "little")
    size = 84 + _FACET.itemsize * count
    if len(data) >= 84 and size == len(data):
        limits.check_faces(count)
        points = np.frombuffer(data, _FACET, offset=84)["corners"].astype(np.float64)
    elif data[:256].lstrip()[:5].lower() == b"solid":
        points = _stl_text(data, limits)
    else:
        reason = f"announces {count:,} faces, {size:,} bytes, but holds {len(data):,} bytes"
        raise Unusable(reason if len(data) >= 84 else "is too short for an STL file")
    points = points.reshape(-1, 3)
    return Mesh(points, np.arange(len(points)).reshape(-1, 3))


def _stl_text(data: bytes, limits: Limits) -> Floats:
    limits.check_faces(data.count(b"endloop"))
    points, last = array("d"), b""
    for words in lines_of(data):
        last = words[0].lower()
        if last == b"vertex":
            points.extend(_three(words[1:]))
        elif last == b"endloop" and (len(points) == 0 or len(points) % 9):
            raise Unusable("has a facet without exactly three vertices")
        if len(points) > 9 * limits.faces:
            limits.check_faces(len(points) // 9 + 1)
    if last != b"endsolid" or len(points) % 9:
        raise Unusable("is cut off: it does not end with endsolid")
    return points_of(points)

"""Readers of obj, off and stl from bytes in memory; they cannot open other files.

Files are untrusted: general libraries allocate what a header announces, open material files, and
need many times the size of a text to parse it. Here headers are checked against the size of the
file before anything is allocated, and text is parsed line by line. `Unusable` is raised for
everything else.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_LINE = 1_000_000
CUT = "copy it again, or save it again from the program that made it"


class Unusable(Exception):
    """Reason and remedy for bytes that are not a mesh; the caller adds the path."""

    def __init__(self, reason: str, remedy: str = CUT) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


class Beyond(Unusable):
    """Bytes that are intact, but beyond a limit or of a form that is not supported."""

    def __init__(self, reason: str, limit: str, remedy: str, value: float | None = None) -> None:
        super().__init__(f"{reason}, {limit}" if reason else limit, remedy)
        self.args = (reason, limit, remedy, value)


class Mesh(NamedTuple):
    vertices: Floats  # (v, 3)
    faces: Ints  # (f, 3)


class Limits(NamedTuple):
    faces: int
    vertices: int

    def check_faces(self, count: int) -> None:
        if count > self.faces:
            limit = f"over max_file_faces = {self.faces:,}"
            remedy = "simplify it, or raise max_file_faces"
            raise Beyond(f"has {count:,} faces or more", limit, remedy, count)

    def check_vertices(self, count: int) -> None:
        if count > self.vertices:
            reason, limit = f"has {count:,} vertices or more", f"over {self.vertices:,} vertices"
            raise Beyond(reason, limit, "simplify it or split it", count)


def fan(corners: Ints, sizes: Ints, limits: Limits) -> Ints:
    """Triangle fans of consecutive polygons.

    A polygon of fewer than three corners is a point or a line, and is dropped.
    """
    triangles = np.maximum(sizes - 2, 0)
    total = int(triangles.sum())
    limits.check_faces(total)
    first = np.repeat(np.cumsum(sizes) - sizes, triangles)
    step = np.arange(total) - np.repeat(np.cumsum(triangles) - triangles, triangles)
    return np.stack([corners[first], corners[first + step + 1], corners[first + step + 2]], axis=1)


def lines_of(data: bytes) -> Iterator[list[bytes]]:
    """The tokens of each line, without comments and empty lines."""
    if b"\n" not in data:  # line ends of classic Mac OS
        data = data.replace(b"\r", b"\n")
    for line in BytesIO(data):
        if len(line) > MAX_LINE:
            raise Unusable(f"has a line of {len(line):,} bytes", "save it with shorter lines")
        if b"#" in line:
            line = line[: line.index(b"#")]
        if tokens := line.split():
            yield tokens


class MeshBuilder:
    """Collects coordinates and polygons within the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.points, self.corners, self.sizes = array("d"), array("q"), array("q")

    def add_polygon(self, corners: Sequence[int]) -> None:
        self.corners.extend(corners)
        self.sizes.append(len(corners))
        if len(self.corners) > 5 * self.limits.faces:
            self.limits.check_faces(len(self.corners) - 2 * len(self.sizes))

    def vertices(self) -> Floats:
        return np.array(self.points, np.float64).reshape(-1, 3)

    def faces(self) -> Ints:
        corners, sizes = np.array(self.corners, np.int64), np.array(self.sizes, np.int64)
        return fan(corners, sizes, self.limits)

    def mesh(self) -> Mesh:
        return Mesh(self.vertices(), self.faces())


# -- obj ------------------------------------------------------------------------------------


def read_obj(data: bytes, limits: Limits) -> Mesh:
    """Vertices and faces of all objects and groups; `mtllib` and the rest are ignored."""
    limits.check_faces(data.count(b"\nf "))
    limits.check_vertices(data.count(b"\nv "))
    if b"\\\n" in data or b"\\\r\n" in data:
        data = data.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
    builder = MeshBuilder(limits)
    points = builder.points
    for tokens in lines_of(data):
        if tokens[0] == b"v":
            if len(tokens) < 4:
                raise Unusable(f"vertex {len(points) // 3 + 1} has {len(tokens) - 1} coordinates")
            points.extend(map(float, tokens[1:4]))
        elif tokens[0] == b"f":
            if len(tokens) < 4:
                raise Unusable(f"face {len(builder.sizes) + 1} has {len(tokens) - 1} corners")
            builder.add_polygon(_obj_corners(tokens, len(points) // 3))
        if len(points) > 3 * limits.vertices:
            limits.check_vertices(len(points) // 3)
    return builder.mesh()


def count_obj(data: bytes, enough: int) -> int | None:
    """The number of triangles, or any number above `enough`, without parsing numbers; None if the
    file has continued lines."""
    if (count := data.count(b"\nf ")) > enough:
        return count
    if b"\\\n" in data or b"\\\r\n" in data:
        return None
    return sum(len(line.split()) - 3 for line in _FACE_LINE.findall(data))


_FACE_LINE = re.compile(rb"(?:^|[\r\n])[ \t]*(f[ \t][^\r\n#]*)")


def _obj_corners(tokens: list[bytes], num_vertices: int) -> list[int]:
    """Indices from 0; obj counts from 1, or backwards from the last vertex if negative."""
    indices = [int(token.split(b"/", 1)[0]) for token in tokens[1:]]
    if 0 in indices:
        raise Unusable("has a face with vertex 0; obj counts from 1", CUT)
    return [index - 1 if index > 0 else num_vertices + index for index in indices]


# -- off ------------------------------------------------------------------------------------


def read_off(data: bytes, limits: Limits) -> Mesh:
    """Read the text form, with or without colours, normals and texture coordinates."""
    lines = lines_of(data)
    counts = _off_start(next(lines, [])) or next(lines, [])
    if len(counts) < 2:
        raise Unusable("has no line with the numbers of vertices and faces")
    vertices, faces = int(counts[0]), int(counts[1])
    if vertices < 0 or faces < 0:
        raise Unusable(f"announces {vertices:,} vertices and {faces:,} faces")
    # At least "0 0 0\n" per vertex and "0\n" per face; the last line may lack its end.
    if 6 * vertices + 2 * faces > len(data) + 1:
        raise Unusable(f"announces {vertices:,} vertices and {faces:,} faces, but is truncated")
    limits.check_faces(faces)
    limits.check_vertices(vertices)
    builder = MeshBuilder(limits)
    for _ in range(vertices):
        builder.points.extend(_three(next(lines, [])))
    for _ in range(faces):
        builder.add_polygon(polygon_at(next(lines, []), 0))
    return builder.mesh()


def _off_start(tokens: list[bytes]) -> list[bytes]:
    """The rest of the keyword's line: some writers put the counts there, without a space."""
    keyword = tokens[0] if tokens else b""
    end = keyword.find(b"OFF") + 3
    if end < 3 or keyword[: end - 3] not in (b"", b"C", b"N", b"CN", b"ST", b"STC", b"STN"):
        raise Unusable("does not begin with OFF", "check what kind of file it is")
    rest = [keyword[end:]] if keyword[end:] else []
    if tokens[1:2] == [b"BINARY"]:
        raise Unusable("is a binary OFF file", "save it as text, or as ply")
    return rest + tokens[1:]


def _three(tokens: list[bytes]) -> tuple[float, float, float]:
    if len(tokens) < 3:
        raise Unusable("is truncated: a vertex is missing or has fewer than three coordinates")
    return float(tokens[0]), float(tokens[1]), float(tokens[2])


def polygon_at(tokens: list[bytes], at: int) -> list[int]:
    """The indices after a count."""
    count = int(tokens[at]) if at < len(tokens) else -1
    end = at + 1 + count
    if count < 0 or end > len(tokens):
        raise Unusable("is truncated: a face is missing or has fewer corners than it announces")
    return [int(token) for token in tokens[at + 1 : end]]


# -- stl ------------------------------------------------------------------------------------

FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_stl(data: bytes, limits: Limits) -> Mesh:
    """Read three separate vertices per face, as stored; callers merge them."""
    count = int.from_bytes(data[80:84], "little")
    size = 84 + FACET.itemsize * count
    # The size decides, because some binary files also begin with "solid".
    if len(data) >= 84 and size == len(data):
        limits.check_faces(count)
        points = np.frombuffer(data, FACET, offset=84)["corners"].astype(np.float64)
    elif data[:256].lstrip()[:5].lower() == b"solid":
        points = _stl_text(data, limits)
    else:
        reason = f"announces {count:,} faces, {size:,} bytes, but holds {len(data):,} bytes"
        raise Unusable(reason if len(data) >= 84 else "is too short for an STL file")
    points = points.reshape(-1, 3)
    return Mesh(points, np.arange(len(points)).reshape(-1, 3))


def count_stl(head: bytes, size: int) -> int | None:
    """Triangles of a binary file of this size; None for text."""
    count = int.from_bytes(head[80:84], "little")
    return count if size == 84 + FACET.itemsize * count else None


def _stl_text(data: bytes, limits: Limits) -> Floats:
    limits.check_faces(data.count(b"endloop"))
    points, last = array("d"), b""
    for tokens in lines_of(data):
        last = tokens[0].lower()
        if last == b"vertex":
            points.extend(_three(tokens[1:]))
        elif last == b"endloop" and (len(points) == 0 or len(points) % 9):
            raise Unusable("has a facet without exactly three vertices")
        if len(points) > 9 * limits.faces:
            limits.check_faces(len(points) // 9 + 1)
    if last != b"endsolid" or len(points) % 9:
        raise Unusable("is truncated: it does not end with endsolid")
    return np.array(points, np.float64).reshape(-1, 3)


def closedness(faces: Ints) -> float:
    """Share of edges with exactly two faces; 1 for a closed surface."""
    if not len(faces):
        return 0.0
    edges = np.sort(np.stack([faces, np.roll(faces, -1, 1)], -1).reshape(-1, 2), 1)
    _, uses = np.unique(edges, axis=0, return_counts=True)
    return float((uses == 2).mean())


def row_numbers(rows: Ints, count: int) -> Ints:
    """(n,): an integer for each row of numbers below `count`, in the order of the rows."""
    if count ** rows.shape[1] >= 2**63:
        return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    numbers = rows[:, 0]
    for column in rows.T[1:]:
        numbers = numbers * count + column
    return numbers

"""Closing of cracks in generated meshes, where a vertex was drawn in two cells of the grid, or a
face was left out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Face = tuple[int, ...]
Edge = tuple[int, int]
LONGEST = 8
"""Edges of the largest hole that is filled."""
FOLDED = -0.95
"""Cosine of the normals of faces of which one is the back of another."""
REACH = 2
"""Cells of the grid."""
ROUNDS = 4


def mended(vertices: Floats, faces: Ints, points: Floats, bins: int) -> tuple[Floats, Ints]:
    """The mesh with fewer open edges, the vertices left where they were, on a grid over -1..1.

    Two vertices on open edges become one where they are at most two cells apart along each axis and
    this leaves fewer open edges, and no further edge with more than two faces. Holes of up to eight
    edges are filled where the surface, of which these are `points`, goes on.
    """
    surface = _Surface(vertices, faces)
    reach = REACH * 2 / bins + 1e-6
    near = max(reach, 2 * spacing(points))
    for _ in range(ROUNDS):
        if not surface.merge(reach) + surface.fill(points, near):
            break
    rows = np.array(sorted(surface.faces.values()), np.int64).reshape(-1, 3)
    used, renamed = np.unique(rows, return_inverse=True)
    return vertices[used], renamed.reshape(-1, 3)


def spacing(points: Floats) -> float:
    """Median distance along an axis from a point to the nearest other; of a few points."""
    chosen = points[:: max(1, len(points) // 128)]
    apart = np.abs(chosen[:, None] - points[None]).max(-1)
    return float(np.median(np.partition(apart, 1, axis=1)[:, 1]))


class _Surface:
    """Faces by number, the faces of each vertex, and how many faces each edge has."""

    def __init__(self, vertices: Floats, faces: Ints) -> None:
        self.vertices = vertices
        self.faces: dict[int, Face] = {}
        self.at: dict[int, set[int]] = defaultdict(set)
        self.uses: Counter[Edge] = Counter()
        self.known: set[Face] = set()
        self.next = 0
        for face in faces.tolist():
            self.add(tuple(face))

    def add(self, face: Face) -> None:
        key = tuple(sorted(face))
        if len({*face}) < len(face) or key in self.known:
            return
        self.known.add(key)
        self.faces[self.next] = face
        self.uses.update(edges(face))
        for corner in face:
            self.at[corner].add(self.next)
        self.next += 1

    def remove(self, number: int) -> None:
        face = self.faces.pop(number)
        self.known.remove(tuple(sorted(face)))
        self.uses.subtract(edges(face))
        for corner in face:
            self.at[corner].remove(number)

    def cost(self, touched: Iterable[Edge]) -> tuple[int, int]:
        """Edges with more than two faces, and open ones."""
        uses = [self.uses[edge] for edge in touched]
        return sum(n > 2 for n in uses), sum(n == 1 for n in uses)

    def open_edges(self) -> list[Edge]:
        """In the direction in which a missing face has them."""
        return [
            (b, a)
            for face in self.faces.values()
            for a, b in pairwise((*face, face[0]))
            if self.uses[_edge(a, b)] == 1
        ]

    def merge(self, reach: float) -> int:
        rim = np.array(sorted({corner for edge in self.open_edges() for corner in edge}), int)
        if len(rim) < 2:
            return 0
        at = self.vertices[rim]
        apart = np.abs(at[:, None] - at[None]).max(-1)
        first, second = np.nonzero(np.triu(apart <= reach, 1))
        order = np.argsort(apart[first, second], kind="stable")
        gone: set[int] = set()
        for a, b in zip(rim[first[order]].tolist(), rim[second[order]].tolist()):
            if a not in gone and b not in gone:
                kept, dropped = (a, b) if len(self.at[a]) >= len(self.at[b]) else (b, a)
                if self.replace(dropped, kept):
                    gone.add(dropped)
        return len(gone)

    def replace(self, old: int, new: int) -> bool:
        """Puts a vertex in place of another, unless this is not better."""
        numbers = sorted(self.at[old])
        before = [self.faces[number] for number in numbers]
        after = [tuple(new if corner == old else corner for corner in face) for face in before]
        whole = [face for face in after if len({*face}) == len(face)]
        if not self.have_area(whole):
            return False
        touched = {edge for face in (*before, *after) for edge in edges(face)}
        nonmanifold, opened = self.cost(touched)
        for number in numbers:
            self.remove(number)
        begin = self.next
        for face in after:
            self.add(face)
        now = self.cost(touched)
        if now[0] <= nonmanifold and now[1] < opened and self.next > begin:
            return True
        for number in range(begin, self.next):
            self.remove(number)
        for face in before:
            self.add(face)
        return False

    def have_area(self, faces: Sequence[Face]) -> bool:
        corners = self.vertices[np.array(faces, np.int64).reshape(-1, 3)]
        longest = np.square(corners - np.roll(corners, 1, 1)).sum(2).max(1)
        return bool((np.linalg.norm(_normals(corners), axis=1) > 1e-5 * longest).all())

    def fill(self, points: Floats, near: float) -> int:
        following: dict[int, list[int]] = defaultdict(list)
        for a, b in self.open_edges():
            following[a].append(b)
        count = 0
        for start in sorted(following):
            for loop in _loops(following, [start]):
                if all(self.uses[_edge(a, b)] == 1 for a, b in pairwise((*loop, start))):
                    count += self.close(loop, points, near)
        return count

    def close(self, loop: Sequence[int], points: Floats, near: float) -> bool:
        """Fills a hole, if the surface goes on there."""
        new = self.cut(loop)
        corners = self.vertices[np.array(new)]
        distances = np.abs(corners.mean(1)[:, None] - points[None]).max(-1).min(1)
        inside = {edge for face in new for edge in edges(face)}
        if (distances > near).any() or any(self.uses[edge] > 1 for edge in inside):
            return False
        # The back of a sheet is no hole in it.
        beside = [n for a, b in edges(tuple(loop)) for n in self.at[a] & self.at[b]]
        others = self.vertices[np.array([self.faces[number] for number in beside])]
        cosines = _unit(_normals(corners)) @ _unit(_normals(others)).T
        if not self.have_area(new) or (cosines < FOLDED).any():
            return False
        before = self.next
        for face in new:
            self.add(face)
        return self.next > before

    def cut(self, loop: Sequence[int]) -> list[Face]:
        """Triangles over a loop: the corner with the shortest new edge is cut off first."""
        new, left = list[Face](), list(loop)
        while len(left) > 3:
            at = self.vertices[left]
            i = int(np.argmin(np.linalg.norm(np.roll(at, 2, 0) - at, axis=1)))
            new.append((left[i - 2], left[i - 1], left[i]))
            del left[i - 1]
        return [*new, (left[0], left[1], left[2])]


def _normals(corners: Floats) -> Floats:
    """Of triangles, twice as long as their area."""
    return np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _loops(following: dict[int, list[int]], path: list[int]) -> list[list[int]]:
    """Holes of up to eight edges that begin with a path, each at its lowest vertex."""
    found: list[list[int]] = []
    for after in following.get(path[-1], ()):
        if after == path[0] and len(path) > 2:
            found.append(path)
        elif after > path[0] and after not in path and len(path) < LONGEST:
            found += _loops(following, [*path, after])
    return found


def edges(face: Face) -> list[Edge]:
    return [_edge(a, b) for a, b in pairwise((*face, face[0]))]


def _edge(a: int, b: int) -> Edge:
    return (a, b) if a < b else (b, a)

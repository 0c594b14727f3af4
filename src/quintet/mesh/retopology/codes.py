"""Meshes as codes: the coordinates of the corners of each face, on a grid.

A face is nine numbers: z, y, x of its lowest corner, then of the other two in their order around
it. Faces are sorted by them, so that a mesh has one sequence of codes, each greater than the last.
"""

import numpy as np
from torch import Tensor

from quintet.mesh.geometry import Floats, Ints, discretise, undiscretise
from quintet.mesh.transformer.assemble import Mesh, assemble


def codes_of(vertices: Floats, faces: Ints, bins: int) -> Ints:
    """(f', 9) of a mesh in -1..1: without faces that have no area on the grid, or are there twice.

    Vertices of one cell become one.
    """
    cells = discretise(vertices, bins)[:, ::-1]
    numbers = (cells[:, 0] * bins + cells[:, 1]) * bins + cells[:, 2]
    corners = numbers[faces]
    first = corners.argmin(1)[:, None]
    corners = np.take_along_axis(corners, (first + np.arange(3)) % 3, 1)
    ordered = np.sort(corners, 1)
    corners = corners[(ordered[:, 1:] != ordered[:, :-1]).all(1)]
    # Of faces with the same corners, one: of both windings, the lower.
    corners = corners[np.lexsort(corners.T[::-1])]
    _, once = np.unique(np.sort(corners, 1), axis=0, return_index=True)
    corners = corners[np.sort(once)]
    parts = [corners // bins**2, corners // bins % bins, corners % bins]
    return np.stack(parts, -1).reshape(-1, 9)


def mesh_of(codes: Tensor, bins: int) -> Mesh:
    """The mesh of codes (f, 9), -1 in padding; vertices are at the centres of their cells."""
    coordinates = undiscretise(codes.unflatten(-1, (3, 3)).flip(-1), bins)
    return assemble(codes, coordinates)

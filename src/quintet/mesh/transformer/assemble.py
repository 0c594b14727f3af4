"""Conversion of face codes and coordinates to indexed vertices and faces."""

import dis
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Mesh(NamedTuple):
    vertices: Tensor
    """(v, 3), fp32."""
    faces: Tensor
    """(f, corners), int64."""


class Meshes(list[Mesh]):
    """Generated meshes. A list, except that two are not unpacked: `coords, mask = generate(…)` of
    meshgpt-pytorch would take two meshes for coordinates and a mask."""

    def __iter__(self) -> Iterator[Mesh]:
        caller = sys._getframe(1)
        opcode, count = caller.f_code.co_code[caller.f_lasti :][:2]
        if dis.opname[opcode] == "UNPACK_SEQUENCE" and count == 2:
            raise TypeError(
                "generate returns a list of meshes, not coordinates and a mask: write meshes ="
                " transformer.generate(…), then meshes[0].vertices and meshes[0].faces"
            )
        return super().__iter__()


def assemble(codes: Tensor, coordinates: Tensor, corners: int = 3) -> Mesh:
    """Convert codes (f, t) and coordinates (f, corners, 3) of one mesh to vertices and faces.

    Corners with equal codes, or other labels, become one vertex at their mean position, numbered
    in order of appearance. Degenerate and duplicate faces are dropped, with the vertices only they
    use.
    """
    is_face = codes[:, 0] >= 0
    rows = codes[is_face].unflatten(-1, (corners, -1)).flatten(0, 1)
    positions = coordinates[is_face].flatten(0, 1).float()
    _, vertex = torch.unique(rows, dim=0, return_inverse=True)
    faces = vertex.view(-1, corners)
    ordered = faces.sort(dim=-1).values
    distinct = (ordered[:, 1:] != ordered[:, :-1]).all(-1)
    faces = faces[distinct][first_occurrences(ordered[distinct])]
    count = torch.zeros(len(positions), 1, device=positions.device).index_add_(
        0, vertex, torch.ones_like(positions[:, :1])
    )
    mean = torch.zeros_like(positions).index_add_(0, vertex, positions) / count.clamp_min(1)
    used, compact = torch.unique(faces, return_inverse=True)
    first_use = torch.full((len(used),), faces.numel(), device=faces.device).scatter_reduce_(
        0, compact.flatten(), torch.arange(faces.numel(), device=faces.device), "amin"
    )
    order = first_use.argsort()
    return Mesh(mean[used[order]], order.argsort()[compact])


def first_occurrences(rows: Tensor) -> Tensor:
    """Ascending indices of the first occurrence of each distinct row."""
    groups, group = torch.unique(rows, dim=0, return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    first = torch.full((len(groups),), len(rows), device=rows.device)
    return first.scatter_reduce_(0, group, index, "amin").sort().values

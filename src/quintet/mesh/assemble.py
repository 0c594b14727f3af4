"""From the codes of faces to vertices and faces that any program can open."""

from typing import NamedTuple

import torch
from torch import Tensor


class Mesh(NamedTuple):
    vertices: Tensor
    """(v, 3), fp32."""
    faces: Tensor
    """(f, corners), int64."""


def assemble(codes: Tensor, coordinates: Tensor, corners: int = 3) -> Mesh:
    """Codes (f, t) and coordinates (f, corners, 3) of one mesh as vertices and faces.

    Corners with the same codes are one vertex, at their mean place; vertices are numbered as they
    appear. Faces that lose a corner by this, and repetitions of a face, are left out, and so are
    the vertices that only they use.
    """
    real = codes[:, 0] >= 0
    rows = codes[real].unflatten(-1, (corners, -1)).flatten(0, 1)
    places = coordinates[real].flatten(0, 1).float()
    _, vertex = torch.unique(rows, dim=0, return_inverse=True)
    faces = vertex.view(-1, corners)
    ordered = faces.sort(dim=-1).values
    distinct = (ordered[:, 1:] != ordered[:, :-1]).all(-1)
    faces = faces[distinct][first_of_each(ordered[distinct])]
    count = torch.zeros(len(places), 1, device=places.device).index_add_(
        0, vertex, torch.ones_like(places[:, :1])
    )
    mean = torch.zeros_like(places).index_add_(0, vertex, places) / count.clamp_min(1)
    used, compact = torch.unique(faces, return_inverse=True)
    appears = torch.full((len(used),), faces.numel(), device=faces.device).scatter_reduce_(
        0, compact.flatten(), torch.arange(faces.numel(), device=faces.device), "amin"
    )
    order = appears.argsort()
    return Mesh(mean[used[order]], order.argsort()[compact])


def first_of_each(rows: Tensor) -> Tensor:
    """Indices of the rows that equal no earlier one, ascending."""
    groups, group = torch.unique(rows, dim=0, return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    first = torch.full((len(groups),), len(rows), device=rows.device)
    return first.scatter_reduce_(0, group, index, "amin").sort().values

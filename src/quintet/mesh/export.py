"""What can leave the mesh room as a graph: the autoencoder. The transformer cannot."""

from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.exporting import Exportable, Input, Piece
from quintet.mesh import geometry
from quintet.mesh.autoencoder import MeshAutoencoder

WRITER = (
    "it writes face after face, looks back at what it wrote and draws, and ends when it likes,"
    " which is a loop and no graph"
)


class Encode(nn.Module):
    """Meshes -> codes."""

    def __init__(self, model: MeshAutoencoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, vertices: Tensor, faces: Tensor, neighbours: Tensor) -> Tensor:
        return self.model.tokenize(vertices, faces, None, neighbours)


class Decode(nn.Module):
    """Codes -> the corners of faces, as bins: their centres are the coordinates."""

    def __init__(self, model: MeshAutoencoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model.decode_codes(codes)
        return geometry.discretise(found.coordinates, self.model.config.bins), found.mask


def examples(model: MeshAutoencoder, batch: int, vertices: int, faces: int) -> tuple[Tensor, ...]:
    """Vertices, faces and neighbours of meshes of nothing in particular, the last one short."""
    chance = torch.Generator().manual_seed(faces)
    places = torch.rand(batch, vertices, 3, generator=chance) * 2 - 1
    corners = torch.rand(batch, faces, vertices, generator=chance).argsort(-1)
    table = corners[..., : model.config.corners].clone()
    table[-1, faces * 2 // 3 :] = -1
    return places, table, geometry.face_neighbours(table)


def pieces(model: Any, recipe: Any) -> Exportable:
    if not isinstance(model, MeshAutoencoder):
        return Exportable([], WRITER)
    corners, tokens = model.config.corners, model.config.corners * model.depth
    says = (
        "(batch, vertices, 3) float32 in -1..1",
        f"(batch, faces, {corners}) int64: the vertices of each face, -1 in padding",
        f"(batch, faces, {geometry.NEIGHBOURS}) int64: the faces that share an edge, -1 for none;"
        " quintet.mesh.geometry.face_neighbours(faces) finds them",
    )
    free = (("batch", "vertices"), ("batch", "faces"), ("batch", "faces"))
    traced, checked = examples(model, 2, 20, 24), examples(model, 3, 30, 44)
    given = [Input(*found) for found in zip(traced, checked, says, free, strict=True)]
    numbers = f"(batch, faces, {tokens}) int64 below {model.codebook_size}, -1 in padding"
    codes = [model.tokenize(v, f, None, n) for v, f, n in (traced, checked)]
    bins = model.config.bins
    place = f"(batch, faces, {corners}, 3) int64: x is (2 bin + 1) / {bins} - 1"
    encode = Piece(
        "encode",
        "meshes to codes",
        Encode(model),
        dict(zip(("vertices", "faces", "neighbours"), given)),
        {"codes": numbers},
    )
    decode = Piece(
        "decode",
        "codes to the corners of faces",
        Decode(model),
        {"codes": Input(codes[0], codes[1], numbers, ("batch", "faces"))},
        {"bins": place, "mask": "(batch, faces) bool: true where a face is no padding"},
    )
    left_out = (
        "Neighbours of faces are found before; equal corners become one vertex afterwards, as"
        " quintet.mesh.assemble does."
    )
    return Exportable([encode, decode], left_out)

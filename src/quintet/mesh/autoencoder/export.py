"""Graph export of the mesh autoencoder."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.mesh import geometry
from quintet.mesh.autoencoder.model import MeshAutoencoder

POINTERS = "codes with pointers are read and written corner by corner: a loop, not a graph"

SIZES = ((2, 20, 24), (3, 30, 44))
"""Meshes, vertices and faces of the examples."""


def encode(self: Any, vertices: Tensor, faces: Tensor, neighbours: Tensor) -> Tensor:
    """Meshes -> codes."""
    return self.model.tokenize(vertices, faces, None, neighbours)


def decode(self: Any, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Codes -> bins of the face corners; bin centres are the coordinates."""
    decoded = self.model.decode_codes(codes)
    return geometry.discretise(decoded.coordinates, self.model.config.bins), decoded.mask


def example_inputs(
    model: MeshAutoencoder, batch: int, vertices: int, faces: int
) -> tuple[Tensor, ...]:
    """Random vertices, faces and neighbours; the last mesh is padded."""
    generator = torch.Generator().manual_seed(faces)
    vertex_positions = torch.rand(batch, vertices, 3, generator=generator) * 2 - 1
    corners = torch.rand(batch, faces, vertices, generator=generator).argsort(-1)
    table = corners[..., : model.config.corners].clone()
    table[-1, faces * 2 // 3 :] = -1
    return vertex_positions, table, geometry.face_neighbours(table)


def codes_description(model: MeshAutoencoder) -> str:
    tokens = model.config.corners * model.depth
    return f"(batch, faces, {tokens}) int64 below {model.codebook_size}, -1 in padding"


def decoder_piece(model: MeshAutoencoder) -> Piece:
    meshes = (example_inputs(model, *sizes) for sizes in SIZES)
    codes = [model.tokenize(v, f, None, n) for v, f, n in meshes]
    corners, bins = model.config.corners, model.config.bins
    return Piece(
        "decode",
        "codes to the corners of faces",
        graph(model, decode),
        {"codes": Input(codes[0], codes[1], codes_description(model), ("batch", "faces"))},
        {
            "bins": f"(batch, faces, {corners}, 3) int64: x is (2 bin + 1) / {bins} - 1",
            "mask": "(batch, faces) bool: false in padding",
        },
    )


def pieces(model: MeshAutoencoder, recipe: Any) -> Exportable:
    if model.config.quantiser == "pointer":
        return Exportable([], POINTERS)
    corners = model.config.corners
    descriptions = (
        "(batch, vertices, 3) float32 in -1..1",
        f"(batch, faces, {corners}) int64: the vertices of each face, -1 in padding",
        f"(batch, faces, {geometry.NEIGHBOURS}) int64: faces that share an edge, -1 for none;"
        " see quintet.mesh.geometry.face_neighbours(faces)",
    )
    dynamic_axes = (("batch", "vertices"), ("batch", "faces"), ("batch", "faces"))
    traced, checked = (example_inputs(model, *sizes) for sizes in SIZES)
    inputs = [
        Input(*spec) for spec in zip(traced, checked, descriptions, dynamic_axes, strict=True)
    ]
    encoder = Piece(
        "encode",
        "meshes to codes",
        graph(model, encode),
        dict(zip(("vertices", "faces", "neighbours"), inputs)),
        {"codes": codes_description(model)},
    )
    left_out = (
        "Face neighbours are an input; merge equal corners afterwards, as"
        " quintet.mesh.transformer.assemble does."
    )
    return Exportable([encoder, decoder_piece(model)], left_out)

"""Exported graphs of retopology: points and the next face, with a program that makes meshes by them
without torch."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.models.export import Exportable, Input, Piece, graph
from quintet.mesh.geometry import EXTENT
from quintet.mesh.retopology import driver, ranking, seams
from quintet.mesh.retopology.model import SPARE, Retopology
from quintet.mesh.transformer import faces as face_loop
from quintet.mesh.transformer.export import cross_kvs, face_piece, kvs_about
from quintet.nn.attention import Context
from quintet.shared.export.pieces import PROGRAM, program


def encode(self: Any, points: Tensor, faces: Tensor, first: Tensor) -> Tensor:
    """Keys and values of the points in each layer that attends to them."""
    values = self.model.encode(points, faces, first)
    every = torch.ones(values.shape[:2], dtype=torch.bool)
    context = Context(*self.model.transformer.encode_text(values.shape[0], values, every))
    return cross_kvs(self.model.transformer, context)


def context_inputs(model: Retopology, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    points = torch.rand(count, model.config.points, 6, generator=generator) * 2 - 1
    return [points, torch.arange(count) * 50, torch.arange(count) * 10]


@torch.no_grad()
def pieces(model: Retopology, recipe: Any) -> Exportable:
    config, transformer = model.config, model.transformer
    described = {
        "points": f"(batch, {config.points}, 6) float32: points in -1..1, and unit normals",
        "faces": "(batch) int64: the wished number of faces, 0 for any",
        "first": "(batch) int64: the first face of the window",
    }
    few, more = (context_inputs(model, count) for count in (2, 3))
    inputs = {
        name: Input(traced, checked, about)
        for (name, about), traced, checked in zip(described.items(), few, more)
    }
    network = graph(model, encode)
    kv = encode(network, *(each.checked for each in inputs.values()))
    about = kvs_about(transformer, kv, "the points")
    context = Piece("context", "points", network, inputs, {"context": about})
    mask = torch.ones(len(kv), kv.shape[4], dtype=torch.bool)
    rows = {"context": (kv, about), "mask": (mask, f"(rows, {mask.shape[1]}) bool: all true")}
    face, told = face_piece(transformer, rows, ordered=True)
    told |= {"captions": None, "bins": config.bins, "points": config.points}
    told |= {"context": mask.shape[1], "extent": EXTENT, "spare": SPARE}
    settings = {"points": str, "faces": int, "count": 1, "seed": 0}
    settings |= {"temperature": 0.5, "top_k": int}
    files = program(told, settings, face_loop, ranking, seams, driver)
    left_out = f"Keeping a part, surfaces and missing normals are not exported. {PROGRAM}"
    return Exportable([context, face], left_out, files)

"""Codes of meshes from a frozen autoencoder, cached on disk (shared/code_cache.py)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.mesh.data import round_up
from quintet.shared.code_cache import CachedCodes


def num_rows(faces: int, max_faces: int) -> int:
    """A row for each face, and one for the end unless the mesh is full."""
    return min(faces + 1, max_faces)


def pack(meshes: Sequence[Tensor], max_faces: int, unit: int) -> dict[str, Tensor]:
    """Codes (f, t) as `MeshTransformer.forward` takes them, in whole units of rows."""
    lengths = torch.tensor([num_rows(len(codes), max_faces) for codes in meshes])
    rows = min(round_up(int(lengths.sum()), unit), len(meshes) * max_faces)
    packed = torch.full((rows, meshes[0].shape[1]), -1, dtype=torch.int32)
    for start, codes in zip(lengths.cumsum(0) - lengths, meshes):
        packed[start : start + len(codes)] = codes
    return {"codes": packed, "lengths": lengths}


class CodeData(CachedCodes):
    """Dataset of codes (f, t) and captions of the meshes in `source`."""

    cache, what = "mesh-codes", "meshes"

    def row_shape(self, network: Any) -> tuple[int, ...]:
        return (network.config.corners * network.config.depth,)

    @torch.no_grad()
    def encode(self, network: Any, batch: Any, device: torch.device) -> tuple[Tensor, ...]:
        """Codes (f, t) of each mesh on the host, in fp32 whatever the precision of the run."""
        names = ("neighbours", "lengths", "ranks")
        tables = {name: batch[name].to(device) for name in names if name in batch}
        vertices = batch["vertices"].to(device, next(network.parameters()).dtype)
        with torch.autocast(device.type, enabled=False):
            codes = network.tokenize(vertices, batch["faces"].to(device), **tables)
        faces = batch["lengths"][:, 0].tolist()
        return codes[0, : sum(faces)].to(torch.int32).cpu().split(faces)

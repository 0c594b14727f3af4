"""Codes of meshes from a frozen autoencoder, computed once and cached (shared/code_cache.py)."""

from typing import Any

import torch
from torch import Tensor

from quintet.shared.code_cache import CachedCodes


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

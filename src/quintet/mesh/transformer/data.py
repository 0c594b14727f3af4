"""Codes of meshes from a frozen autoencoder, computed once and cached on disk (shared/codes.py)."""

from typing import Any

import torch
from torch import Tensor

from quintet.shared.code_cache import CachedCodes


class CodeData(CachedCodes):
    """Dataset of codes (f, t) and captions of the meshes in `source`."""

    cache, what = "mesh-codes", "meshes"

    def row_shape(self, network: Any) -> tuple[int, ...]:
        return (network.config.corners * network.config.depth,)

    def encode(self, network: Any, batch: Any, device: torch.device) -> tuple[Tensor, ...]:
        return encode(network, batch, device)


@torch.no_grad()
def encode(autoencoder: Any, batch: dict[str, Any], device: torch.device) -> tuple[Tensor, ...]:
    """Codes (f, t) of each mesh on the host, in fp32 whatever the precision of the run."""
    with torch.autocast(device.type, enabled=False):
        dtype = next(autoencoder.parameters()).dtype
        names = ("neighbours", "lengths", "ranks")
        tables = {name: batch[name].to(device) for name in names if name in batch}
        codes = autoencoder.tokenize(
            batch["vertices"].to(device, dtype), batch["faces"].to(device), **tables
        )
    faces = batch["lengths"][:, 0].tolist()
    return codes[0, : sum(faces)].to(torch.int32).cpu().split(faces)

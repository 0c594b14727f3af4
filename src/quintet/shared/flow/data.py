"""Latents of pictures or clips, and their captions."""

from typing import Any

import torch
from torch import Tensor

from quintet.engine.keys import Key
from quintet.shared.generation.data import CodeData

ENOUGH = 4096
"""Samples whose latents are measured."""


class LatentData(CodeData):
    """Dataset of latents (n, c), in half precision or in 8 bits, and captions."""

    kind = "latents"

    def dtype_of(self, network: Any) -> torch.dtype:
        return network.cached_as

    def row_shape(self, network: Any) -> tuple[int, ...]:
        return (network.quantiser.channels,)

    def rows(self, codes: Tensor) -> Tensor:
        return codes.flatten(2).mT.clamp(-65504, 65504)

    def keyed(self, index: int, key: Key | None) -> dict[str, Any]:
        """Also, whether the sample is an augmented variant."""
        return {**super().keyed(index, key), "changed": self.variant(index, key) > 0}


def statistics(data: Any) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, in fp64 over samples spread evenly."""
    step = -(-len(data) // ENOUGH)
    total: Any = 0.0
    square: Any = 0.0
    count = 0
    for index in range(0, len(data), step):
        rows = data.codes_of(index).double()
        total, square = total + rows.sum(0), square + rows.square().sum(0)
        count += len(rows)
    mean = total / count
    variance = square / count - mean.square()
    return mean.float(), variance.clamp_min(1e-12).sqrt().float()

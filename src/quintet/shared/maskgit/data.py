"""Ids of pictures or clips, and their captions."""

from typing import Any

import torch

from quintet.shared.generation.data import CodeData


class IdData(CodeData):
    """Dataset of ids (n,) and captions."""

    kind = "ids"

    def dtype_of(self, network: Any) -> torch.dtype:
        return torch.int32 if network.codebook_size <= 2**31 else torch.int64

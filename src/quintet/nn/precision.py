"""fp32 under autocast, for quantisers, losses and statistics."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> Tensor:
    """fp32, or fp64 if the model runs in it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off on the tensor's device; the meta device does not support autocast."""
    device = tensor.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)

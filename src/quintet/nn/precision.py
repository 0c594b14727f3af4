"""fp32 under autocast, for quantisers, losses and statistics; and what need not be fp32."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> Tensor:
    """fp32, or fp64 if the model runs in it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def residual_stream(tensor: Tensor) -> Tensor:
    """The input of a stack of residual blocks: in the autocast dtype on CUDA, where reading and
    writing the stream costs a tenth of a step. The norms compute in fp32 all the same."""
    if tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return tensor  # as the weights are, which may have been cast
    narrow = tensor.is_cuda and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype("cuda")) if narrow else full_precision(tensor)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off on the tensor's device; the meta device does not support autocast."""
    device = tensor.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)

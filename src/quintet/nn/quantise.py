"""What the quantisers share.

Each takes latents (b, c, ...) and returns `Quantised`: values of the same shape, ids (b, ...) and a
0-dim loss. Each normalises its input over channels and projects it at unit scale first: without
that the latents of a young encoder sit in one cell and the codebook collapses. All of it runs in
fp32 whatever the autocast, or rounding would depend on the precision of the run.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Quantised(NamedTuple):
    values: Tensor
    """(b, c, ...): what the decoder sees, with a gradient to the latents."""
    ids: Tensor
    """(b, ...): one integer below `codes` for each position."""
    loss: Tensor
    """0-dim, fp32: a mean over positions, already weighted."""


class Quantiser(Protocol):
    codes: int

    def __call__(self, latents: Tensor) -> Quantised: ...

    def to_ids(self, latents: Tensor) -> Tensor: ...

    def ids_to_values(self, ids: Tensor) -> Tensor: ...


def full_precision(tensor: Tensor) -> Tensor:
    """fp32, or fp64 where the model already runs in it."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Full precision on the tensor's device; the meta device, for counting, knows no autocast."""
    device = tensor.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def straight_through(value: Tensor, soft: Tensor) -> Tensor:
    """`value`, bit for bit, with the gradient of `soft`: the bracket is exactly zero."""
    return value.detach() + (soft - soft.detach())


def channels_to_end(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1)


def channels_to_front(tensor: Tensor) -> Tensor:
    return tensor.movedim(-1, 1)


class ProjectIn(nn.Module):
    """(b, c, ...) -> (b, ..., d) with unit variance at the start: a norm and a 1x1 projection."""

    def __init__(self, dim: int, code_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.randn(code_dim, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(code_dim))

    def forward(self, latents: Tensor) -> Tensor:
        rows = full_precision(channels_to_end(latents))
        return F.linear(F.layer_norm(rows, (self.dim,)), self.weight, self.bias)


class ProjectOut(nn.Module):
    """(b, ..., d) -> (b, c, ...), a 1x1 projection."""

    def __init__(self, code_dim: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, code_dim) / math.sqrt(code_dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, values: Tensor) -> Tensor:
        return channels_to_front(F.linear(values, self.weight, self.bias))

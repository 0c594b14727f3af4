"""Interface and projections of the quantisers.

Each takes latents (b, c, ...) and returns `Quantised`: values of the same shape, ids (b, ...) and a
0-dim loss. Each normalises its input over channels and projects it to unit scale: without that, the
latents of an untrained encoder fall into one cell and the codebook collapses. Everything runs in
fp32 regardless of autocast, because rounding must not depend on the precision of the run.
"""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn.precision import full_precision


class Quantised(NamedTuple):
    values: Tensor
    """(b, c, ...): the decoder's input, with a gradient to the latents."""
    ids: Tensor
    """(b, ...): integers below `codebook_size`."""
    loss: Tensor
    """0-dim, fp32: weighted, averaged over positions."""


class Quantiser(Protocol):
    codebook_size: int

    def __call__(self, latents: Tensor) -> Quantised: ...

    def to_ids(self, latents: Tensor) -> Tensor: ...

    def ids_to_values(self, ids: Tensor) -> Tensor: ...


def straight_through(value: Tensor, soft: Tensor) -> Tensor:
    """`value`, bit for bit, with the gradient of `soft`: the term in brackets is exactly zero."""
    return value.detach() + (soft - soft.detach())


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1)


def channels_first(tensor: Tensor) -> Tensor:
    return tensor.movedim(-1, 1)


class ProjectIn(nn.Module):
    """(b, c, ...) -> (b, ..., d): layer norm and a 1x1 projection, unit variance at init."""

    def __init__(self, dim: int, code_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.randn(code_dim, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(code_dim))

    def forward(self, latents: Tensor) -> Tensor:
        hidden = F.layer_norm(full_precision(channels_last(latents)), (self.dim,))
        return F.linear(hidden, self.weight, self.bias)


class ProjectOut(nn.Module):
    """(b, ..., d) -> (b, c, ...): a 1x1 projection, unit variance at init for codes of `scale`."""

    def __init__(self, code_dim: int, dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, code_dim) / (math.sqrt(code_dim) * scale))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, values: Tensor) -> Tensor:
        return channels_first(F.linear(values, self.weight, self.bias))

"""Message passing between faces.

Shapes: b meshes, f faces, n neighbours of a face (-1 is none), d features, w message width.
Adjacency is a padded table and aggregation a gather; padding sends no messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.nn import kernels
from quintet.nn.attention import zero_init
from quintet.nn.heads import geglu, is_fused
from quintet.nn.norms import RMSNorm
from quintet.nn.operations import without_compiler

Aggregate = Callable[[Tensor], Tensor]


class Adjacency(NamedTuple):
    """Symmetric adjacency of faces."""

    rows: Tensor
    """(b, f, n): row of each neighbour among all faces of the batch."""
    mask: Tensor
    """(b, f, n): which entries are neighbours."""
    degree: Tensor
    """(b, f, 1): number of neighbours, at least 1."""


def adjacency(neighbours: Tensor, mask: Tensor) -> Adjacency:
    """Deduplicated mutual edges; a table truncated at n may list an edge in one direction only."""
    batch, count = mask.shape
    table = torch.where(mask[..., None], neighbours, -1)
    own = torch.arange(count, device=mask.device)[:, None]
    offset = count * torch.arange(batch, device=mask.device)[:, None, None]
    index = table.clamp_min(0) + offset
    mutual = (table.flatten(0, 1)[index] == own[..., None]).any(-1)
    earlier = torch.ones(table.shape[-1], table.shape[-1], device=mask.device).tril(-1).bool()
    repeated = ((table[..., :, None] == table[..., None, :]) & earlier).any(-1)
    edges = (table >= 0) & (table != own) & mutual & ~repeated
    return Adjacency(index, edges, edges.sum(-1, keepdim=True).clamp_min(1))


def neighbour_sum(messages: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """(b, f, w) -> (b, f, w), one table column at a time: never materialises (b, f, n, w)."""
    rows, total = messages.flatten(0, 1), torch.zeros_like(messages)
    for column, is_neighbour in zip(index.unbind(-1), mask.unbind(-1)):
        total = total + torch.where(is_neighbour[..., None], rows[column], 0)
    return total


class NeighbourSum(torch.autograd.Function):
    """`neighbour_sum` as its own backward: adjacency is symmetric, so no scatter is needed."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(index, mask)
        return neighbour_sum(messages, index, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return neighbour_sum(gradients[0], *ctx.saved_tensors), None, None


def neighbour_aggregate(edges: Adjacency) -> Aggregate:
    """Own message and mean of the neighbours', concatenated (GraphSAGE, arXiv 1706.02216)."""

    def aggregate(messages: Tensor) -> Tensor:
        total: Any = NeighbourSum.apply(messages, edges.rows, edges.mask)
        return torch.cat((messages, total / edges.degree.to(messages.dtype)), -1)

    return aggregate


def windows(messages: Tensor, owner: Tensor, radius: int) -> Tensor:
    """(b, f, w) -> (b, f, (2 radius + 1) w)."""
    if is_fused(messages):
        return _windows(messages.contiguous(), owner.contiguous(), radius)
    return plain_windows(messages, owner, radius)


def plain_windows(messages: Tensor, owner: Tensor, radius: int) -> Tensor:
    count = owner.shape[1]
    around = F.pad(owner, (radius, radius), value=-1)
    padded = F.pad(messages, (0, 0, radius, radius))
    parts: list[Tensor] = []
    for i in range(2 * radius + 1):
        same = (around[:, i : i + count] == owner) & (owner >= 0)
        parts.append(torch.where(same[..., None], padded[:, i : i + count], 0))
    return torch.cat(parts, -1)


def window_aggregate(owner: Tensor, radius: int) -> Aggregate:
    """Messages of the faces up to `radius` before and after, concatenated; zero if they are of
    another mesh. `owner` (b, f): the mesh of each face, -1 in padding."""
    return lambda messages: windows(messages, owner, radius)


@without_compiler
@torch.library.custom_op("quintet::windows", mutates_args=())
def _windows(messages: Tensor, owner: Tensor, radius: int) -> Tensor:
    return kernels.lazy("windows").forward(messages, owner, radius)


@_windows.register_fake
def _(messages: Tensor, owner: Tensor, radius: int) -> Tensor:
    return messages.new_empty(*messages.shape[:2], (2 * radius + 1) * messages.shape[2])


@without_compiler
@torch.library.custom_op("quintet::windows_backward", mutates_args=())
def _windows_backward(gradient: Tensor, owner: Tensor, radius: int) -> Tensor:
    return kernels.lazy("windows").backward(gradient.contiguous(), owner, radius)


@_windows_backward.register_fake
def _(gradient: Tensor, owner: Tensor, radius: int) -> Tensor:
    return gradient.new_empty(*gradient.shape[:2], gradient.shape[2] // (2 * radius + 1))


def _setup_windows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, owner, ctx.radius = inputs
    ctx.save_for_backward(owner)


def _backward_windows(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return _windows_backward(gradient, *ctx.saved_tensors, ctx.radius), None, None


_windows.register_autograd(_backward_windows, setup_context=_setup_windows)


class Stem(nn.Linear):
    """Linear layer that zero-pads its input width to a multiple of 16 for tensor cores."""

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__(in_features, dim)
        self.padding = -in_features % 16

    def forward(self, input: Tensor) -> Tensor:
        weight = F.pad(self.weight, (0, self.padding))
        return F.linear(F.pad(input, (0, self.padding)), weight, self.bias)


class Layer(nn.Module):
    """Residual message-passing layer followed by a residual gated MLP."""

    def __init__(self, dim: int, message_dim: int, num_messages: int) -> None:
        super().__init__()
        self.message_norm = RMSNorm(dim, eps=1e-6)
        self.to_message = nn.Linear(dim, message_dim)
        self.from_messages = zero_init(nn.Linear(num_messages * message_dim, dim))
        self.mlp_norm = RMSNorm(dim, eps=1e-6)
        self.mlp_in = nn.Linear(dim, 2 * dim)
        self.mlp_out = zero_init(nn.Linear(dim, dim))

    def forward(self, x: Tensor, aggregate: Aggregate) -> Tensor:
        messages = F.gelu(self.to_message(self.message_norm(x)))
        x = x + self.from_messages(aggregate(messages))
        return x + self.mlp_out(geglu(self.mlp_in(self.mlp_norm(x))))

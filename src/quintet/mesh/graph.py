"""Layers over faces: each tells a short message and hears those of its neighbours.

Shapes: b meshes, f faces, n neighbours of a face (-1 is none), d features, w numbers in a message.
Neighbours are a padded table and a gather; padding is never heard.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Hear = Callable[[Tensor], Tensor]


class Links(NamedTuple):
    """Which faces hear which; symmetric."""

    places: Tensor
    """(b, f, n): the row of each neighbour among all faces of the batch."""
    linked: Tensor
    """(b, f, n): whether there is one."""
    degree: Tensor
    """(b, f, 1): how many there are, at least 1."""


def links_of(neighbours: Tensor, mask: Tensor) -> Links:
    """Links where both sides name each other, once: a table cut at n may name only one way."""
    batch, count = mask.shape
    table = torch.where(mask[..., None], neighbours, -1)
    own = torch.arange(count, device=mask.device)[:, None]
    offset = count * torch.arange(batch, device=mask.device)[:, None, None]
    places = table.clamp_min(0) + offset
    mutual = (table.flatten(0, 1)[places] == own[..., None]).any(-1)
    earlier = torch.ones(table.shape[-1], table.shape[-1], device=mask.device).tril(-1).bool()
    repeated = ((table[..., :, None] == table[..., None, :]) & earlier).any(-1)
    linked = (table >= 0) & (table != own) & mutual & ~repeated
    return Links(places, linked, linked.sum(-1, keepdim=True).clamp_min(1))


def neighbour_sum(messages: Tensor, places: Tensor, linked: Tensor) -> Tensor:
    """(b, f, w) -> (b, f, w), one column of the table after the other: never (b, f, n, w)."""
    rows, total = messages.flatten(0, 1), torch.zeros_like(messages)
    for place, there in zip(places.unbind(-1), linked.unbind(-1)):
        total = total + torch.where(there[..., None], rows[place], 0)
    return total


class NeighbourSum(torch.autograd.Function):
    """`neighbour_sum`, whose backward is itself: links are symmetric, so nothing is scattered."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, places: Tensor, linked: Tensor) -> Tensor:
        ctx.save_for_backward(places, linked)
        return neighbour_sum(messages, places, linked)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        places, linked = ctx.saved_tensors
        return neighbour_sum(gradients[0], places, linked), None, None


def hear_neighbours(links: Links) -> Hear:
    """A face's own message beside the mean of its neighbours' (GraphSAGE, arXiv 1706.02216)."""

    def hear(messages: Tensor) -> Tensor:
        total: Any = NeighbourSum.apply(messages, links.places, links.linked)
        return torch.cat((messages, total / links.degree.to(messages.dtype)), -1)

    return hear


def hear_window(mask: Tensor, reach: int) -> Hear:
    """The messages of the faces up to `reach` before and after, side by side; padding is zero."""

    def hear(messages: Tensor) -> Tensor:
        padded = F.pad(torch.where(mask[..., None], messages, 0), (0, 0, reach, reach))
        count = mask.shape[1]
        return torch.cat([padded[:, i : i + count] for i in range(2 * reach + 1)], -1)

    return hear


def zeroed(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Norm(nn.RMSNorm):
    """With its weight in the features' own precision, as the fused kernels want it."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Stem(nn.Linear):
    """From any number of features, rounded up with zeros: matrix units want whole rows of 16."""

    def __init__(self, seen: int, dim: int) -> None:
        super().__init__(seen, dim)
        self.missing = -seen % 16

    def forward(self, input: Tensor) -> Tensor:
        widened = F.pad(self.weight, (0, self.missing))
        return F.linear(F.pad(input, (0, self.missing)), widened, self.bias)


class Layer(nn.Module):
    """x + a projection of the messages heard, then x + a gated MLP."""

    def __init__(self, dim: int, message_dim: int, heard: int) -> None:
        super().__init__()
        self.message_norm = Norm(dim)
        self.to_message = nn.Linear(dim, message_dim)
        self.from_messages = zeroed(nn.Linear(heard * message_dim, dim))
        self.norm = Norm(dim)
        self.widen = nn.Linear(dim, 2 * dim)
        self.narrow = zeroed(nn.Linear(dim, dim))

    def forward(self, x: Tensor, hear: Hear) -> Tensor:
        messages = F.gelu(self.to_message(self.message_norm(x)))
        x = x + self.from_messages(hear(messages))
        gate, value = self.widen(self.norm(x)).chunk(2, -1)
        return x + self.narrow(F.gelu(gate) * value)

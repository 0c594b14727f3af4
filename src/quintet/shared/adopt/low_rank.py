"""Low-rank adaptation (arXiv 2106.09685) of a network that stays as it is: W + SCALE · up · down.

The change is added to weights, not to outputs of layers. So it needs to know nothing of a layer
but its weights: causal convolutions that pad for themselves, transposed, grouped and
weight-normalised ones are adapted alike, and merging gives exactly what was trained. (peft replaces
layers by its own, and has none for most classes of clips and audio: docs/adopt.md.)
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from quintet.nn.precision import without_autocast

SCALE = 16.0
"""Alpha over rank. With Adam, it multiplies the learning rate of `up` but not that of `down`, as
LoRA+ (arXiv 2402.12354) advises; so the learning rates of whole weights suit factors."""
PREFIX = "low_rank."
"""Prefix of the factors' names in a checkpoint."""
T = TypeVar("T")


class LowRank(nn.Module):
    """Factors of the changes of weights, by the names of these. Every change is 0 at first."""

    def __init__(self, shapes: Mapping[str, torch.Size], rank: int) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for name, (rows, *others) in self.shapes.items():
            columns = torch.Size(others).numel()
            inner = min(rank, rows, columns)
            bound = columns**-0.5
            self.down[_key(name)] = nn.Parameter(
                torch.empty(inner, columns).uniform_(-bound, bound)
            )
            self.up[_key(name)] = nn.Parameter(torch.zeros(rows, inner))

    @classmethod
    def like(cls, state: Mapping[str, Tensor], network: nn.Module) -> "LowRank":
        """Factors of the shapes in a checkpoint."""
        keys = {name.rpartition(".")[2] for name in state}
        shapes = {n: p.shape for n, p in network.named_parameters() if _key(n) in keys}
        return cls(shapes, max(len(value) for name, value in state.items() if ".down." in name))

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """`down` and `up` by the name of the weight."""
        return {name: (self.down[_key(name)], self.up[_key(name)]) for name in self.shapes}

    def merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The changed ones among the weights of a network."""
        with without_autocast(next(iter(self.up.values()))):
            return {
                name: weights[name]
                + SCALE * (self.up[_key(name)] @ self.down[_key(name)]).view(shape)
                for name, shape in self.shapes.items()
            }

    def applied(self, network: nn.Module, call: Callable[[], T]) -> T:
        """The result of a call while the network has the changed weights."""
        merged = self.merged(dict(network.named_parameters()))
        return functional_call(
            Call(network, call), {f"network.{n}": w for n, w in merged.items()}, ()
        )


class Call(nn.Module):
    """A function of a network as a module, whose weights can be replaced."""

    def __init__(self, network: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def adaptable(network: nn.Module, names: Collection[str]) -> dict[str, torch.Size]:
    """Named weights of linear and convolutional layers; of a normalised one, both its factors."""
    return {
        f"{layer}.{name}": parameter.shape
        for layer, module in network.named_modules()
        if isinstance(module, (nn.Linear, _ConvNd))
        for name, parameter in module.named_parameters()
        if parameter.ndim >= 2 and f"{layer}.{name}" in names
    }


def _key(name: str) -> str:
    """Names of parameters have no dots."""
    return name.replace(".", "-")

"""What a network may offer the engine: blocks to compile, shard and recompute, and a commit."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from quintet.engine.errors import RunError


@runtime_checkable
class HasRegions(Protocol):
    def regions(self) -> Iterable[nn.Module]:
        """Blocks that are compiled, sharded and recomputed by themselves."""
        ...


@runtime_checkable
class CompilesWhole(Protocol):
    compiles_whole: bool
    """Its blocks are not alike, so that one graph of all of them is the faster one."""


@runtime_checkable
class Commits(Protocol):
    def commit(self, context: Any) -> None:
        """Fold the statistics that forward has collected into the state, after each step."""


def regions_of(network: nn.Module) -> list[nn.Module]:
    return list(network.regions()) if isinstance(network, HasRegions) else []


def recompute(network: nn.Module) -> None:
    """Keep only the inputs of each block, and compute it again when its gradients are due.

    Dropout is the same the second time: the generators' states are put back for it.
    """
    for block in regions_of(network):
        if any(isinstance(module, Commits) for module in block.modules()):
            raise RunError(
                f"checkpoint_activations: {type(block).__name__} collects statistics in its "
                "forward, which would be collected twice; leave it out of regions()"
            )
        if "forward" not in vars(block):  # a model may be trained twice
            block.forward = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **keywords)
        return checkpoint(forward, *args, use_reentrant=False, **keywords)

    return call


def require_regions(networks: Iterable[nn.Module]) -> None:
    networks = list(networks)
    if not any(regions_of(network) for network in networks):
        names = ", ".join(type(network).__name__ for network in networks)
        raise RunError(
            f"checkpoint_activations: none of the networks ({names}) names its blocks in "
            "regions(); leave the setting off, or lower --batch-size and raise --accumulate"
        )

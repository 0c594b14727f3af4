"""Statistics that networks keep beside their parameters: collected in forward, applied once a step.

A module that keeps them adds to accumulators in `forward`, only while training, and folds the
accumulators into its state in `commit(at)`. So micro-batches and processes add up to the whole
batch, a skipped step leaves no trace, and nothing is read from the device.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class CommitContext(Protocol):
    """What the end of a step offers to a network with statistics."""

    @property
    def skipped(self) -> Tensor:
        """0-dim on the device: 1 where the step was dropped. Never read it on the host."""
        ...

    def sum(self, tensor: Tensor, /) -> Tensor:
        """The sum over all processes."""
        ...

    def key(self, name: str, /) -> int:
        """A seed of 63 bits that is equal on every process."""
        ...


@runtime_checkable
class Commits(Protocol):
    """A network that keeps statistics."""

    def commit(self, at: CommitContext) -> None: ...


def accumulator(*shape: int) -> Tensor:
    """Zeros to collect into; register them as a buffer that is not saved."""
    return torch.zeros(shape, dtype=torch.float32)


def keyed_normal(like: Tensor, key: int) -> Tensor:
    """Normal noise that depends on the key alone, drawn on the device (a copy could wait)."""
    generator = torch.Generator(like.device).manual_seed(key)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)

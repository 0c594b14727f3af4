"""Running statistics of networks: accumulated in forward, committed once a step.

A module adds to accumulators in `forward` during training, and updates its buffers from them in
`commit(context)`. So micro-batches and processes add up to the whole batch, a skipped step has no
effect, and nothing is synchronised with the host.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class CommitContext(Protocol):
    """The interface of the engine to `commit`."""

    @property
    def skipped(self) -> Tensor:
        """0-dim on the device: 1 if the step was skipped. Never read it on the host."""
        ...

    def sum(self, tensor: Tensor, /) -> Tensor:
        """The sum over all processes."""
        ...

    def noise(self, like: Tensor, name: str, /) -> Tensor:
        """Normal noise of the shape of a tensor, equal on all processes."""
        ...


@runtime_checkable
class Commits(Protocol):
    """A network with running statistics."""

    def commit(self, context: CommitContext) -> None: ...


def accumulator(*shape: int) -> Tensor:
    """Zeros; register them as a non-persistent buffer."""
    return torch.zeros(shape, dtype=torch.float32)

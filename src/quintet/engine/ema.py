"""The moving average of a part's weights: a mapping from name to tensor, never a second module."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def decay_at(decay: float, count: int) -> float:
    """Short runs must not be judged on stale weights: the decay grows with the number of steps."""
    return min(decay, (1 + count) / (10 + count))


class Average:
    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float):
        self.decay = decay
        self.names = list(parameters)
        self.live = list(parameters.values())
        self.values = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self, count: int, skipped: Tensor) -> None:
        """Move towards the live weights; a skipped step weighs nothing, without asking the host."""
        weight = (1 - skipped) * (1 - decay_at(self.decay, count))
        by_type = {value.dtype: weight.to(value.dtype) for value in self.values}
        # One pass over memory. A scalar weight would be one kernel for all, but live on the host.
        weights = [by_type[value.dtype] for value in self.values]
        torch._foreach_lerp_(self.values, [p.detach() for p in self.live], weights)

    @contextmanager
    def swapped_in(self) -> Generator[None, None, None]:
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for index, parameter in enumerate(self.live):
            parameter.data, self.values[index] = self.values[index], parameter.data

    def state(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, value in zip(self.names, self.values):
            value.copy_(state[name])

"""The moving average of a part's weights: a mapping from name to tensor, never a second module."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def decay_at(decay: float, count: int) -> float:
    """Short runs must not be judged on stale weights: the decay grows with the number of steps."""
    return min(decay, (1 + count) / (10 + count))


class Average:
    def __init__(
        self, parameters: Mapping[str, nn.Parameter], decay: float, in_place: bool = False
    ):
        self.decay = decay
        self.in_place = in_place
        """Others hold the parameters' very memory (shards): it is swapped, not pointers to it."""
        self.names = list(parameters)
        self.live = list(parameters.values())
        self.values = [p.detach().clone() for p in self.live]
        self.by_type: dict[torch.dtype, list[int]] = {}
        for index, value in enumerate(self.values):
            self.by_type.setdefault(value.dtype, []).append(index)

    @torch.no_grad()
    def update(self, count: int, skipped: Tensor) -> None:
        """Move towards the live weights; a skipped step weighs nothing, without asking the host."""
        for indices in self.by_type.values():
            # SGD with a decay of 1 towards the weights as gradients: v - w (v - p). Of all kernels
            # it alone passes once over all tensors and takes the flag from the device.
            torch._fused_sgd_(
                [self.values[i] for i in indices],
                [self.live[i] for i in indices],
                [],
                lr=1 - decay_at(self.decay, count),
                weight_decay=1.0,
                maximize=True,
                momentum=0.0,
                dampening=0.0,
                nesterov=False,
                is_first_step=False,
                found_inf=skipped,
            )

    @contextmanager
    def swapped_in(self) -> Generator[None, None, None]:
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for index, parameter in enumerate(self.live):
            if self.in_place:
                kept = parameter.detach().clone()
                parameter.copy_(self.values[index])
                self.values[index].copy_(kept)
                continue
            parameter.data, self.values[index] = self.values[index], parameter.data

    def state(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, value in zip(self.names, self.values):
            value.copy_(state[name])

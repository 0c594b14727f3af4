"""Exponential moving average (EMA) of a part's weights: tensors by name, not a second module."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def decay_at(decay: float, count: int) -> float:
    """Decay warm-up, so that a short run is not evaluated with stale weights."""
    return min(decay, (1 + max(count, 0)) / (10 + max(count, 0)))


class EMA:
    def __init__(
        self, parameters: Mapping[str, nn.Parameter], decay: float, in_place: bool = False
    ):
        self.decay = decay
        self.in_place = in_place
        """Swap contents instead of pointers: with FSDP others hold the parameters' storage."""
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.values = [p.detach().clone() for p in self.parameters]
        self.by_type: dict[torch.dtype, list[int]] = {}
        for index, value in enumerate(self.values):
            self.by_type.setdefault(value.dtype, []).append(index)

    def move_at(self, count: int) -> float:
        """Share of the way to the current weights, after `count` updates."""
        return 1 - decay_at(self.decay, count)

    @torch.no_grad()
    def update(self, move: float | Tensor, skipped: Tensor) -> None:
        """Move by a share of the way to the current weights; a skipped step is a no-op, without a
        host sync."""
        for indices in self.by_type.values():
            # SGD with a weight decay of 1 and the weights as gradients: v - lr (v - p). It is the
            # only kernel that passes once over all tensors and takes the flag from the device.
            torch._fused_sgd_(  # type: ignore[call-overload]
                [self.values[i] for i in indices],
                [self.parameters[i] for i in indices],
                [],
                lr=move,
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
        """Averaged weights in the parameters within the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for index, parameter in enumerate(self.parameters):
            if self.in_place:
                weights = parameter.detach().clone()
                parameter.copy_(self.values[index])
                self.values[index].copy_(weights)
                continue
            parameter.data, self.values[index] = self.values[index], parameter.data

    def state(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values))

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, value in zip(self.names, self.values):
            value.copy_(state[name])

"""Seat: a process among those that share the data."""

from typing import Protocol

import torch
from torch import Tensor


class Seat(Protocol):
    """What loading needs to know of its process; in a run, the World."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int:
        """How many processes share the data."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of floats that are made from numbers of 16 bits."""
        ...

    def place(self, tensor: Tensor) -> Tensor:
        """The tensor on the device."""
        ...

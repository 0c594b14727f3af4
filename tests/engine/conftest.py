from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

# Hypothesis keeps its examples elsewhere than in the checkout, and tests assert no timing.
settings.register_profile("engine", deadline=None, database=None)
settings.load_profile("engine")


@pytest.fixture
def seat() -> Callable[[int, int], SimpleNamespace]:
    """One process among several, as a value: all that a stream asks of the machine."""

    def at(rank: int = 0, size: int = 1) -> SimpleNamespace:
        device = torch.device("cpu")
        return SimpleNamespace(rank=rank, size=size, device=device, place=lambda data: data)

    return at

import multiprocessing
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

# Hypothesis keeps its examples elsewhere than in the checkout, and tests assert no timing.
settings.register_profile("engine", deadline=None, database=None)
settings.load_profile("engine")


@pytest.fixture(scope="session", autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """Workers ignore SIGTERM; one kept alive by a failed test's traceback would stall the exit."""
    yield
    for child in multiprocessing.active_children():
        child.kill()


@pytest.fixture
def seat() -> Callable[[int, int], SimpleNamespace]:
    """One process among several, as a value: all that a stream asks of the machine."""

    def at(rank: int = 0, size: int = 1) -> SimpleNamespace:
        device = torch.device("cpu")
        return SimpleNamespace(
            rank=rank, size=size, device=device, dtype=torch.float32, place=lambda data: data
        )

    return at

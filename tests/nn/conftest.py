"""The end of a step, for one process or for two that hold the same statistics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from quintet.engine.keys import keyed_normal


@dataclass
class FakeCommit:
    skipped: Tensor = field(default_factory=lambda: torch.zeros(()))
    processes: int = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor * self.processes

    def noise(self, like: Tensor, name: str) -> Tensor:
        return keyed_normal(like, sum(name.encode()) + 2**62)


@pytest.fixture
def commit_at() -> Callable[..., FakeCommit]:
    def build(*, skipped: bool = False, processes: int = 1) -> FakeCommit:
        return FakeCommit(torch.tensor(float(skipped)), processes)

    return build


@pytest.fixture(autouse=True)
def _seeded_and_single() -> Iterator[None]:
    """One thread: on tensors this small a second one only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)

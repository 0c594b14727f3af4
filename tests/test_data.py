"""The keyed loader for training loops of others."""

import logging
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet.data import KeyedLoader
from quintet.engine.errors import RunError


class Noisy(Dataset[tuple[int, Tensor]]):
    """An index, and a draw from each global generator."""

    def __init__(self, size: int = 50, broken: int | None = None):
        self.size, self.broken = size, broken

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        if index == self.broken:
            raise OSError("cut short")
        drawn = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])
        return index, drawn


def loaded(loader: KeyedLoader, until: int) -> list[Any]:
    return [(ids.tolist(), drawn.tolist()) for b in loader.steps(until) for ids, drawn in b]


def test_a_state_continues_the_same_batches_with_other_workers() -> None:
    """A pass is twelve steps: the state is of the middle of the second one."""
    whole = loaded(KeyedLoader(Noisy(), 4), 30)
    before = KeyedLoader(Noisy(), 4, workers=2)
    assert loaded(before, 17) == whole[:17]
    after = KeyedLoader(Noisy(), 4, workers=1)
    after.load_state_dict(before.state_dict())
    before.close()
    assert after.step == 17
    assert loaded(after, 30) == whole[17:]
    after.close()
    assert len(repr(after.state_dict())) < 100


@pytest.mark.parametrize(("width", "accumulate", "processes"), [(4, 3, 2), (4, 1, 6), (4, 2, 3)])
def test_processes_and_micro_batches_divide_one_order(
    width: int, accumulate: int, processes: int
) -> None:
    whole = loaded(KeyedLoader(Noisy(), 4, accumulate=6), 9)
    seats = [
        KeyedLoader(Noisy(), width, accumulate=accumulate, rank=rank, processes=processes)
        for rank in range(processes)
    ]
    for seat in seats:
        seat.load_state_dict({"samples": 48, "global_batch": 24, "size": 50, "seed": 0})
    dealt = [loaded(seat, 9) for seat in seats]
    assert [part[index] for index in range(len(dealt[0])) for part in dealt] == whole[12:]


def test_passes_have_one_length_and_leave_no_sample_out() -> None:
    loader = KeyedLoader(Noisy(), 4, accumulate=2)
    passes = [[ids.tolist() for ids, _ in loader] for _ in range(25)]
    assert {len(each) for each in passes} == {len(loader)} == {12}
    seen = [index for each in passes for ids in each for index in ids]
    for epoch in range(len(seen) // 50):
        assert sorted(seen[50 * epoch :][:50]) == list(range(50))
    assert loader.samples(3) == [index for ids in passes[0][6:8] for index in ids]


@pytest.mark.slow
def test_a_loader_that_was_closed_goes_on_and_ends_with_its_program() -> None:
    """Its workers ignore the signal by which Python ends them."""
    code = (
        "from quintet.data import KeyedLoader\n"
        "loader = KeyedLoader(range(50), 4, workers=1)\n"
        "for each in loader.steps(3): pass\n"
        "loader.close()\n"
        "for each in loader.steps(5): pass\n"
        "print(loader.step)"
    )
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "5\n"), ended.stderr


def test_a_pass_that_was_left_goes_on_at_the_next_step() -> None:
    loader, found = KeyedLoader(Noisy(), 4), list[list[int]]()
    for ids, _ in loader:
        found.append(ids.tolist())
        if len(found) == 5:
            break
    loader.load_state_dict(loader.state_dict())
    found += [ids.tolist() for ids, _ in loader]
    assert found == [ids for ids, _ in loaded(KeyedLoader(Noisy(), 4), 12)]


def test_loading_leaves_the_generators_of_the_loop_alone() -> None:
    """Otherwise dropout would depend on whether there are workers."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loaded(KeyedLoader(Noisy(), 4), 3)
    assert (random.random(), np.random.rand(), torch.rand(())) == expected


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (
            lambda: KeyedLoader(Noisy(), 4, accumulate=2),
            r"has global_batch 4, this loader 8 \(batch_size 4 x accumulate 2 x 1 processes\): .*"
            "make a loader whose global_batch is 4",
        ),
        (lambda: KeyedLoader(Noisy(49), 4), "has size 50, this loader 49"),
        (lambda: KeyedLoader(Noisy(), 4, seed=1), "has seed 0, this loader 1"),
        (lambda: KeyedLoader(Noisy(3), 4), r"3 samples, but a step takes 4 .* takes 1 to 3"),
        (lambda: KeyedLoader(Noisy(), 4, rank=2, processes=2), "rank is 2 of 2 processes"),
        (lambda: KeyedLoader(Noisy(), 4, rank=0), "both rank and processes"),
    ],
)
def test_another_order_is_refused(loader: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        loader().load_state_dict(KeyedLoader(Noisy(), 4).state_dict())


def test_damage_is_logged_and_batches_stay_full(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quintet.data"):
        found = loaded(KeyedLoader(Noisy(broken=7), 4), 13)
    assert {len(ids) for ids, _ in found} == {4}
    assert caplog.messages == ["sample 7 was replaced by another one: cut short"]

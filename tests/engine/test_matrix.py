"""A run goes on with any number of processes, with copies of the weights or with shards of them."""

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import harness
import many
from harness import assert_same, tensors
from toy import ToyRecipe

GLOBAL_BATCH = 8
RECIPE = ToyRecipe(
    batch_size=2,
    workers=0,
    trackers=(),
    device="cpu",
    precision="fp32",
    log_every=1,
    evaluate_every=2,
    save_every=2,
)


class How(NamedTuple):
    processes: int
    shard: bool

    def recipe(self, steps: int) -> ToyRecipe:
        accumulate = GLOBAL_BATCH // RECIPE.batch_size // self.processes
        changes = {"fsdp": self.shard, "accumulate": accumulate, "steps": steps}
        return dataclasses.replace(RECIPE, schedule_steps=20, planned_steps=20, **changes)


EVERY = [How(1, False), How(2, False), How(2, True), How(4, False), How(4, True)]
# Every way of running loads what another way has written, among them 2 sharded, 1 plain, 2 plain.
CHAIN = [How(2, True), How(1, False), How(2, False), How(4, True), How(2, True), How(4, False)]


def go_on(path: Path, how: How, before: int) -> None:
    """Load, compare with what was written, and take two more steps."""
    written = tensors(path, before)
    assert_same(written, many.loaded(how.recipe(before), path, how.processes))
    harness.run(how.recipe(before + 2), path, "resume", how.processes)


def orders(path: Path) -> dict[int, str]:
    return {line["step"]: line["order"] for line in harness.lines(path) if "order" in line}


@pytest.mark.parametrize(
    "length",
    [3, pytest.param(len(CHAIN), marks=pytest.mark.slow)],  # of four processes as well
)
def test_a_run_goes_on_with_any_number_of_processes_and_shards(length: int, tmp_path: Path) -> None:
    last, chain = 2 * length, CHAIN[:length]
    harness.run(CHAIN[1].recipe(last), tmp_path / "straight")
    harness.run(chain[0].recipe(2), tmp_path / "chain", size=chain[0].processes)
    for turn, how in enumerate(chain[1:], 1):
        go_on(tmp_path / "chain", how, 2 * turn)
    assert orders(tmp_path / "chain") == orders(tmp_path / "straight")
    assert len(orders(tmp_path / "chain")) == last


@pytest.mark.slow
@pytest.mark.parametrize("first", EVERY, ids=str)
def test_every_way_of_running_goes_on_from_every_other(first: How, tmp_path: Path) -> None:
    harness.run(first.recipe(2), tmp_path / "first", size=first.processes)
    harness.run(EVERY[0].recipe(4), tmp_path / "straight")
    for index, then in enumerate(EVERY):
        shutil.copytree(tmp_path / "first", tmp_path / f"{index}")
        go_on(tmp_path / f"{index}", then, 2)
        assert orders(tmp_path / f"{index}") == orders(tmp_path / "straight")


@pytest.mark.slow  # as test_resume.py does to copies, and the test above to shards
def test_one_sharded_run_is_killed_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    how = How(2, True)
    recipe = dataclasses.replace(how.recipe(12), save_every=3)
    harness.run(recipe, tmp_path / "straight", size=2)
    harness.killed_and_resumed(recipe, tmp_path / "cut", kills=1, seed=3, size=2)
    assert_same(tensors(tmp_path / "straight", 12), tensors(tmp_path / "cut", 12))


def test_files_of_shards_are_those_of_whole_weights(tmp_path: Path) -> None:
    """By name and shape: whatever reads a checkpoint need not know how it came about."""
    shapes = []
    for how in (How(2, False), How(2, True)):
        path = tmp_path / f"{how.shard}"
        harness.run(how.recipe(2), path, size=2)
        files = tensors(path, 2)
        shapes.append({name: (tuple(t.shape), t.dtype) for name, t in files.items()})
    assert shapes[0] == shapes[1]


def test_the_chain_has_every_way_of_running() -> None:
    assert set(CHAIN) == set(EVERY)
    assert (How(2, True), How(1, False), How(2, False)) in set(zip(CHAIN, CHAIN[1:], CHAIN[2:]))
    assert len(set(itertools.pairwise(CHAIN))) == len(CHAIN) - 1

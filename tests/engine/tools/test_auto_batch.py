"""Micro-batches that fit are found by dry steps without a trace; what does not fit is explained."""

import dataclasses
import json
import mmap
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness import _context, assert_same, free_port, lines, tensors, trajectory
from quintet.engine.errors import RunError
from quintet.engine.launch import start
from quintet.engine.machine import memory
from quintet.engine.machine.world import World
from quintet.engine.settings import free_names
from quintet.engine.task import Batch, StepContext, Update
from quintet.engine.tools import auto_batch
from quintet.engine.trainer import Trainer
from quintet.engine.when import When
from toy import ToyRecipe, ToyTask

BASE = ToyRecipe(
    steps=6,
    batch_size=8,
    accumulate=2,
    discriminator_start=3,
    workers=0,
    log_every=1,
    save_every=3,
    evaluate_every=3,
    statistics=True,
    device="cpu",
    trackers=(),
)


def variant(**changes: Any) -> ToyRecipe:
    return dataclasses.replace(BASE, **changes)


class Small(ToyTask):
    """A device that holds so many samples at a time, and the discriminator's half of them."""

    holds = 4

    def discriminator_loss(
        self, nets: Any, batch: Batch, context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if batch.size > self.holds:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to hold {batch.size} samples")
        return super().discriminator_loss(nets, batch, context)


class Tiny(Small):
    holds = 0


def go(task: Any, recipe: ToyRecipe, path: Path, mode: Any = "new") -> int:
    return start(task, recipe, path, name="toy", mode=mode, progress=False)


def config(path: Path) -> dict[str, Any]:
    return json.loads((path / "config.json").read_text())


# -- searching ------------------------------------------------------------------------------


@given(st.integers(1, 500), st.integers(0, 600), st.booleans())
def test_the_largest_divisor_that_fits_is_found(asked: int, holds: int, whole: bool) -> None:
    sizes = auto_batch.divisors(asked)
    assert sizes == [n for n in range(1, asked + 1) if asked % n == 0]
    found = auto_batch.largest(sizes, lambda size: size <= holds, whole)
    assert found == max((n for n in sizes if n <= holds), default=None)


@pytest.mark.parametrize(
    ("holds", "questions"),
    [(64, [64]), (32, [64, 32]), (23, [64, 32, 16]), (0, [64, 32, 16, 8, 4, 2, 1])],
)
def test_a_gpu_is_searched_downwards_from_the_full_batch(holds: int, questions: list[int]) -> None:
    asked: list[int] = []
    fits = lambda size: (asked.append(size), size <= holds)[1]
    auto_batch.largest(auto_batch.divisors(64), fits, True)
    assert asked == questions


def test_a_cpu_is_searched_upwards() -> None:
    asked: list[int] = []
    fits = lambda size: (asked.append(size), size <= 20)[1]
    assert auto_batch.largest(auto_batch.divisors(96), fits, False) == 16
    assert asked == [1, 2, 4, 8, 16, 32, 24]


def test_every_update_is_due_at_the_dry_step() -> None:
    late, often = When(start=70, every=4), When(every=3)
    never = Update("c", lambda *_: iter(()), When(every=0))
    updates = [Update("a", lambda *_: iter(()), when) for when in (late, often)]
    step = auto_batch.busiest([*updates, never])
    assert step >= 70
    assert late.due(step)
    assert often.due(step)
    assert auto_batch.busiest([never]) == 0


def test_the_size_of_a_sample_includes_nested_values() -> None:
    item = {
        "a": torch.zeros(3),
        "b": [np.zeros(2), "four"],
        "c": (torch.zeros(1, dtype=torch.bool),),
    }
    assert auto_batch.num_bytes(item) == 12 + 16 + 4 + 1


# -- --auto-batch ----------------------------------------------------------------------------------


def test_auto_batch_changes_nothing_if_the_full_batch_fits(tmp_path: Path) -> None:
    go(ToyTask, BASE, tmp_path / "plain")
    go(ToyTask, variant(auto_batch=True), tmp_path / "fit")
    for step in (3, 6):
        assert_same(tensors(tmp_path / "plain", step), tensors(tmp_path / "fit", step))
    assert trajectory(tmp_path / "plain") == trajectory(tmp_path / "fit")
    assert config(tmp_path / "fit")["auto_batch"] == {"asked": 8, "found": 8}
    assert config(tmp_path / "fit")["global_batch"] == 16


def test_the_micro_batch_is_found_recorded_and_reported(tmp_path: Path) -> None:
    go(Small, variant(auto_batch=True, evaluate_batch=32), tmp_path / "run")
    settings = config(tmp_path / "run")["settings"]
    assert (settings["batch_size"], settings["accumulate"]) == (4, 4)
    assert settings["evaluate_batch"] == 16
    assert config(tmp_path / "run")["auto_batch"] == {"asked": 8, "found": 4}
    assert config(tmp_path / "run")["global_batch"] == 16
    said = [line["message"] for line in lines(tmp_path / "run", "events")]
    assert any("auto-batch: 4 of 8 samples fit" in message for message in said)


def test_the_found_micro_batch_trains_like_a_given_one(tmp_path: Path) -> None:
    go(Small, variant(auto_batch=True), tmp_path / "fit")
    go(Small, variant(batch_size=4, accumulate=4), tmp_path / "asked")
    assert_same(tensors(tmp_path / "fit", 6), tensors(tmp_path / "asked", 6))
    assert trajectory(tmp_path / "fit") == trajectory(tmp_path / "asked")


def test_the_result_does_not_depend_on_what_fits(tmp_path: Path) -> None:
    """But for the order of summation: in double precision, without dropout."""
    same = {"precision": "fp64", "dropout": 0.0, "auto_batch": True}
    go(ToyTask, variant(**same), tmp_path / "large")
    go(Small, variant(**same), tmp_path / "small")
    one, other = tensors(tmp_path / "large", 6), tensors(tmp_path / "small", 6)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-9, atol=1e-12)


@pytest.mark.by_default("resume")
@pytest.mark.parametrize("mode", ["resume", "resume_or_new"])
def test_a_resumed_run_keeps_its_micro_batch(mode: str, tmp_path: Path) -> None:
    go(Small, variant(auto_batch=True), tmp_path / "straight")
    recipe = variant(auto_batch=True, evaluate_batch=32, steps=3, schedule_steps=6)
    go(Small, recipe, tmp_path / "cut")
    if mode == "resume":  # the recipe is what config.json says, and more steps
        found = config(tmp_path / "cut")["settings"]
        recipe = variant(
            auto_batch=True, batch_size=found["batch_size"], accumulate=found["accumulate"]
        )
        go(Small, dataclasses.replace(recipe, schedule_steps=6), tmp_path / "cut", "resume")
        assert_same(tensors(tmp_path / "straight", 6), tensors(tmp_path / "cut", 6))
    else:  # the command as it was given first
        go(ToyTask, recipe, tmp_path / "cut", "resume_or_new")
        assert config(tmp_path / "cut")["settings"]["evaluate_batch"] == 16
    assert config(tmp_path / "cut")["settings"]["batch_size"] == 4
    assert config(tmp_path / "cut")["auto_batch"] == {"asked": 8, "found": 4}
    assert len([e for e in lines(tmp_path / "cut", "events") if "auto-batch:" in e["message"]]) == 1


def test_auto_batch_may_change_on_resume() -> None:
    assert "auto_batch" in free_names(BASE)


def test_a_single_sample_that_does_not_fit_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not even one sample"):
        go(Tiny, variant(auto_batch=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_error_in_a_dry_step_is_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    class Wrong(ToyTask):
        def generator_loss(self, nets: Any, batch: Batch, context: StepContext) -> Any:
            raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        go(Wrong, variant(auto_batch=True), tmp_path / "run")


class Model(nn.Module):
    """Of a user's: a loss of the batch, statistics gathered in forward, one weight frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return (self.layer(x) * self.frozen).square().mean()


def test_a_dry_run_does_not_change_the_model_of_a_trainer(tmp_path: Path) -> None:
    model = Model()
    model.train(False)
    data = torch.randn(40, 3)
    trainer = Trainer(model, data, steps=3, batch_size=4, run=tmp_path / "run", device="cpu")
    before = {
        name: value.clone() for name, value in [*model.state_dict().items(), ("s", model.seen)]
    }
    draws = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    recipe = dataclasses.replace(trainer.recipe, auto_batch=True)
    assert auto_batch.find(trainer.task, recipe, World(recipe)) == recipe
    after = {
        name: value.clone() for name, value in [*model.state_dict().items(), ("s", model.seen)]
    }
    assert_same(before, after)
    assert not model.training
    assert [p.requires_grad for p in model.parameters()] == [False, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert random.getstate() == draws[0]
    assert (np.random.get_state()[1] == draws[1]).all()
    assert torch.get_rng_state().equal(draws[2])


# -- real limits, real processes ------------------------------------------------------------

SCRIPT = """
import os, resource, sys, torch
from pathlib import Path
from quintet.engine.machine import memory
from quintet.engine.errors import RunError
from quintet.engine.launch import start
from quintet.engine.machine.world import shut_down
from toy import ToyRecipe, ToyTask

os.environ |= {group}
handle = os.open({path!r} + ".log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.dup2(handle, 1)
os.dup2(handle, 2)
torch.set_num_threads(1)

class Wide(ToyTask):
    '''Each sample takes 32 MiB beside its few numbers.'''
    def generator_loss(self, nets, batch, context):
        room = torch.ones(batch.size, 8 << 20)
        return super().generator_loss(nets, batch, context)

class Second(ToyTask):
    '''The second process holds two samples at a time, the first one eight.'''
    def generator_loss(self, nets, batch, context):
        if batch.size > (2 if os.environ["RANK"] == "1" else 8):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().generator_loss(nets, batch, context)

recipe = ToyRecipe(steps=2, batch_size=16, workers=0, log_every=1, evaluate_every=0, device="cpu",
                   precision="fp32", trackers=(), auto_batch={auto_batch})
if {limit}:
    space = memory._lines(memory.STATUS)["VmSize"] + {limit}
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
try:
    start({task}, recipe, Path({path!r}), name="toy", progress=False)
except RunError as error:
    print(error)
    sys.exit(2)
shut_down()
"""


def spawned(
    path: Path, task: str, auto_batch: bool, limit: int = 0, size: int = 1
) -> tuple[list[int | None], str]:
    """Statuses and what was said, of processes forked from the harness's server."""
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = []
    for rank in range(size):
        group = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {}
        code = SCRIPT.format(
            path=str(path), task=task, auto_batch=auto_batch, limit=limit, group=group
        )
        children.append(_context.Process(target=exec, args=(code, {"__name__": "run"})))
        children[-1].start()
    for child in children:
        child.join(60)
        child.kill()
    return [child.exitcode for child in children], Path(f"{path}.log").read_text()


def test_on_a_cpu_with_a_real_limit_the_largest_that_fits_is_found(tmp_path: Path) -> None:
    """400 MiB more than an idle process: room for 8 samples of 32 MiB, not for 16."""
    statuses, said = spawned(tmp_path / "run", "Wide", auto_batch=True, limit=400 << 20)
    assert statuses == [0], said
    assert config(tmp_path / "run")["auto_batch"] == {"asked": 16, "found": 8}
    assert lines(tmp_path / "run")[-1]["step"] == 2


def test_out_of_memory_on_a_cpu_names_the_remedies(tmp_path: Path) -> None:
    statuses, said = spawned(tmp_path / "run", "Wide", auto_batch=False, limit=400 << 20)
    assert statuses == [2], said
    assert "Traceback" not in said
    assert "out of memory on cpu at step 0 in the update of 'generator'" in said
    assert "--batch-size 8 --accumulate 2" in said
    assert "--auto-batch" in said
    assert "--precision bf16" in said
    assert not (tmp_path / "run").exists(), "so that the corrected command can be given again"


def test_several_processes_agree_on_the_smallest(tmp_path: Path) -> None:
    statuses, said = spawned(tmp_path / "run", "Second", auto_batch=True, size=2)
    assert statuses == [0, 0], said
    found = config(tmp_path / "run")
    assert found["auto_batch"] == {"asked": 16, "found": 2}
    assert found["settings"]["accumulate"] == 8
    assert found["global_batch"] == 32


# -- explaining -----------------------------------------------------------------------------


def test_out_of_memory_during_a_run_names_the_resume_command(tmp_path: Path) -> None:
    with pytest.raises(RunError) as ended:
        go(Small, variant(evaluate_batch=32), tmp_path / "run")
    said = str(ended.value)
    assert "at step 3 in the update of 'discriminator'" in said
    assert "--batch-size 4 --accumulate 4" in said
    assert "--evaluate-batch 8, if it was evaluating" in said
    assert f"quintet resume {tmp_path / 'run'} --batch-size" in said
    go(Small, variant(batch_size=4, accumulate=4, schedule_steps=6), tmp_path / "run", "resume")
    assert lines(tmp_path / "run")[-1]["step"] == 6


def test_the_remedies_do_not_halve_a_single_sample(tmp_path: Path) -> None:
    recipe = variant(batch_size=1, accumulate=1, precision="bf16")
    with pytest.raises(RunError) as ended:
        go(Tiny, recipe, tmp_path / "run")
    assert "--batch-size" not in str(ended.value).partition("Try")[2].partition("quintet")[0]
    assert "a smaller model" in str(ended.value)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RunError("out of memory"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_out_of_memory_is_distinguished_from_other_errors(error: Exception, is_one: bool) -> None:
    assert memory.ran_out(error) == is_one


def test_memory_is_measured_where_it_is_used() -> None:
    memory.forget_peak()
    before = memory.peak()
    with mmap.mmap(-1, 40 << 20) as held:  # fresh pages, where a tensor may get freed ones
        held.write(b"x" * (40 << 20))
        assert memory.peak() - before > 30 << 20
        assert memory.resident() <= memory.peak()
    assert 0 < memory.available() <= memory.total()

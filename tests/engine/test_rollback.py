"""Persistent non-finite updates roll a run back to its last intact checkpoint, with other data."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness import Processes, assert_same, lines, tensors, trajectory
from quintet.engine import rollback
from quintet.engine.config import ConfigError, Recipe
from quintet.engine.data.plans import CountPlan
from quintet.engine.errors import RunError, Stopped
from quintet.engine.launch import start
from quintet.engine.meters import Entry
from quintet.engine.runs import checkpoint
from quintet.engine.runs.verify import verify
from quintet.engine.skipped import SkippedUpdates
from quintet.engine.task import Batch, StepContext
from toy import LengthTask, ToyRecipe, ToyTask

BASE = ToyRecipe(
    steps=30,
    batch_size=4,
    workers=0,
    log_every=1,
    save_every=3,
    keep_last=3,
    evaluate_every=8,
    max_skipped=4,
    rollback=2,
    statistics=True,
    trackers=(),
)
BAD = range(11, 18)


def variant(**changes: object) -> ToyRecipe:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


class Poisoned(ToyTask):
    """Some batches of the undisturbed order have no finite loss, whenever they come."""

    def generator_loss(
        self, nets: Any, batch: Batch, context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().generator_loss(nets, batch, context)
        if tuple(batch.ids) in poison(self.recipe):
            loss = loss * float("nan")
        return loss, metrics


def poison(recipe: Recipe) -> set[tuple[int, ...]]:
    plan = CountPlan(200, recipe.seed, recipe.batch_size)
    batches = plan.micro_batches(0, BAD.stop)
    return {tuple(request.sample for request in batches[step]) for step in BAD}


def train(recipe: ToyRecipe, path: Path, mode: str = "new", task: Any = Poisoned) -> int:
    return start(task, recipe, path, name="toy", mode=mode, progress=False)  # type: ignore[arg-type]


def said(path: Path, word: str) -> list[dict[str, Any]]:
    return [event for event in lines(path, "events") if word in event["message"]]


# -- what happens -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gone_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that went back once. Never to be written to."""
    path = tmp_path_factory.mktemp("rollback") / "run"
    assert train(BASE, path) == 30
    return path


def test_it_goes_back_before_the_first_bad_step_and_comes_to_its_end(gone_back: Path) -> None:
    (event,) = said(gone_back, "rolled back")
    assert event["step"] == 9  # the checkpoints at 12 and 15 were of bad steps
    assert "rolled back from step 15 to step 9 (rollback 1 of 2)" in event["message"]
    assert "4 updates of 'generator' in a row were not finite" in event["message"]
    assert "samples [" in event["message"]


def test_the_steps_after_it_take_other_samples(gone_back: Path, tmp_path: Path) -> None:
    train(BASE, tmp_path / "sound", task=ToyTask)
    orders = [
        {line["step"]: line["order"] for line in lines(path) if "order" in line}
        for path in (gone_back, tmp_path / "sound")
    ]
    assert list(orders[0]) == list(orders[1]) == list(range(1, 31))
    assert all((orders[0][step] == orders[1][step]) == (step <= 9) for step in range(1, 31))


def test_it_is_reproduced_bit_for_bit(gone_back: Path, tmp_path: Path) -> None:
    train(BASE, tmp_path / "again")
    assert_same(tensors(gone_back, 30), tensors(tmp_path / "again", 30))
    assert trajectory(gone_back) == trajectory(tmp_path / "again")


def test_doctors_find_the_run_whole(gone_back: Path) -> None:
    verdict = verify(gone_back, lambda about: Poisoned(BASE))
    assert [finding for finding in verdict.findings if finding.fault] == []


class Stopping(Poisoned):
    """Tells its own process to stop, at the second loss of a step."""

    def __init__(self, recipe: ToyRecipe, step: int, turn: int):
        super().__init__(recipe)
        self.step, self.left = step, turn

    def generator_loss(
        self, nets: Any, batch: Batch, context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if context.step == self.step:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return super().generator_loss(nets, batch, context)


@pytest.mark.by_default("10-1", "11-2")
@pytest.mark.parametrize(("step", "turn"), [(8, 1), (9, 1), (10, 1), (11, 1), (13, 1), (11, 2)])
def test_stopped_anywhere_it_goes_on_to_the_same_end(
    step: int, turn: int, gone_back: Path, tmp_path: Path
) -> None:
    """Before the bad steps, among them, and after the run went back."""
    with pytest.raises(Stopped):
        train(BASE, tmp_path / "run", task=lambda recipe: Stopping(recipe, step, turn))
    train(BASE, tmp_path / "run", "resume")
    assert_same(tensors(gone_back, 30), tensors(tmp_path / "run", 30))
    assert trajectory(gone_back) == trajectory(tmp_path / "run")


@pytest.mark.by_default("7")
@pytest.mark.parametrize("every", [7, 30])
def test_it_does_not_depend_on_when_reports_are_read(
    every: int, gone_back: Path, tmp_path: Path
) -> None:
    train(variant(log_every=every), tmp_path / "run")
    assert_same(tensors(gone_back, 30), tensors(tmp_path / "run", 30))


@pytest.mark.by_default("12")
@pytest.mark.parametrize("step", [12, 20])
def test_a_checkpoint_holds_the_whole_state_after_it(step: int, tmp_path: Path) -> None:
    """What a new process reads is what the old one had in memory."""
    recipe = variant(save_every=1, keep_last=99)
    train(recipe, tmp_path / "run")
    whole = tensors(tmp_path / "run", 30)
    for later in checkpoint.steps_in(tmp_path / "run/checkpoints"):
        if later > step:
            shutil.rmtree(checkpoint.path_of(tmp_path / "run/checkpoints", later))
    train(recipe, tmp_path / "run", "resume")
    assert_same(whole, tensors(tmp_path / "run", 30))


def test_batches_by_length_go_back_too(tmp_path: Path) -> None:
    class Both(LengthTask, Worsening):
        pass

    train(variant(rollback=1), tmp_path / "run", task=Both)
    assert len(said(tmp_path / "run", "rolled back")) == 1


class Worsening(ToyTask):
    """The weights of the generator are lost once, at step 12 of the first try."""

    broken = 0

    def generator_loss(
        self, nets: Any, batch: Batch, context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if context.step == 12 and not self.broken:
            self.broken = 1
            with torch.no_grad():
                next(self.parts["generator"].network.parameters()).fill_(float("inf"))
        return super().generator_loss(nets, batch, context)


def test_weights_that_were_lost_come_back(tmp_path: Path) -> None:
    train(BASE, tmp_path / "run", task=Worsening)
    assert all(value.isfinite().all() for value in tensors(tmp_path / "run", 30).values())
    (event,) = said(tmp_path / "run", "rolled back")
    assert event["step"] == 12


def test_nothing_is_evaluated_on_weights_that_are_not_finite(tmp_path: Path) -> None:
    train(variant(evaluate_every=1), tmp_path / "run", task=Worsening)
    assert said(tmp_path / "run", "has weights that are not finite") == []  # taken back
    recipe = variant(evaluate_every=1, rollback=0, log_every=30)
    with pytest.raises(RunError, match="in a row were not finite"):
        train(recipe, tmp_path / "other", task=Worsening)
    assert said(tmp_path / "other", "'generator' has weights that are not finite")


# -- where it ends ------------------------------------------------------------------------------


@pytest.mark.by_default("1")
@pytest.mark.parametrize("size", [1, 2])
def test_what_stays_bad_goes_further_back_each_time_and_then_stops(
    size: int, tmp_path: Path
) -> None:
    """All processes alike: by step 7 nothing helps."""
    recipe = variant(nan_from=7)
    processes = Processes(recipe, tmp_path / "run", size=size)
    assert processes.wait() == [2] * size
    assert [event["step"] for event in said(tmp_path / "run", "rolled back")] == [3]
    assert "rolled back from step 11 to step 6" in processes.said()
    assert "rolled back from step 11 to step 3" in processes.said()
    assert "in a row were not finite" in processes.said()
    assert "last intact checkpoint is at step" in processes.said()


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no intact checkpoint to roll back to"):
        train(variant(nan_from=0, save_every=0), tmp_path / "run", task=ToyTask)


def test_it_is_a_setting_and_by_default_off(tmp_path: Path) -> None:
    assert Recipe().rollback == 0
    with pytest.raises(ConfigError, match="rollback"):
        Recipe(rollback=-1)
    with pytest.raises(RunError, match="The last intact checkpoint is at step 9"):
        train(variant(rollback=0), tmp_path / "run")
    assert train(BASE, tmp_path / "run", "continue") == 30  # and may be given later


def test_two_processes_go_back_and_on_alike(tmp_path: Path) -> None:
    """Both hold the same weights afterwards; the witness of each says so."""
    recipe = variant(nan_from=7, rollback=1, evaluate_every=1)
    processes = Processes(recipe, tmp_path / "run", size=2, name="witness")
    assert processes.wait() == [2, 2]
    assert processes.said().count("rolled back from step") == 1
    witnesses = [(tmp_path / f"run.rank{rank}.json").read_text() for rank in range(2)]
    assert witnesses[0] == witnesses[1]


# -- what it is made of -------------------------------------------------------------------------


def entry(value: float, name: str = "net/skipped") -> Entry:
    return Entry(0, name, torch.tensor(value), 1.0)


def test_streaks_are_counted_mark_by_mark() -> None:
    marks = [entry(1), entry(1), entry(5, "net/loss"), entry(0), entry(1)]
    updates = SkippedUpdates(["net"], limit=4)
    updates.load({"net": 2}, {})
    assert updates.too_many(marks)
    assert not updates.too_many(marks[1:])
    assert updates.state(marks) == {"skips": {"net": 1}, "updates": {"net": (4, 3)}}


def test_each_rollback_begins_an_epoch_of_its_own() -> None:
    size = 10
    first = [{"from": 9, "to": 4, "samples": 23}]
    second = [*first, {"from": 8, "to": 4, "samples": 23}]
    epochs = {
        divmod(23 + rollback.position_shift(past, size), size) for past in ([], first, second)
    }
    assert len(epochs) == 3
    assert {place for epoch, place in epochs if epoch > 2} == {0}


@pytest.mark.parametrize("hostile", [[1], {"net": "x"}, {"net": None}, 3])
def test_a_history_that_makes_no_sense_is_a_sentence(hostile: Any) -> None:
    with pytest.raises(RunError, match=r"state\.json has invalid skips"):
        rollback.read_history({"skips": hostile}, Path("here"))
    with pytest.raises(RunError, match=r"state\.json has invalid skips"):
        rollback.read_history({"rollbacks": [hostile]}, Path("here"))


def test_the_state_says_how_often_the_run_went_back(gone_back: Path) -> None:
    about = json.loads((gone_back / "checkpoints/step-00000030/state.json").read_text())
    assert about["rollbacks"] == [{"from": 15, "to": 9, "samples": 36}]
    assert about["skips"] == {"generator": 0, "discriminator": 0}

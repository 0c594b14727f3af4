"""The recipe of a run, settled from what is asked, what is recorded and the machine."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from quintet.engine.config import Recipe, to_json
from quintet.engine.errors import RunError
from quintet.engine.settled import Mode, settled

ASKED = Recipe(steps=100, batch_size=8, accumulate=2)
PATH = Path("runs/one")


def settle(
    recipe: Recipe, about: dict[str, Any] | None, mode: Mode = "resume", processes: int = 1
) -> Recipe:
    return settled(recipe, about, PATH, mode, processes=processes, precision="bf16")


def recorded(recipe: Recipe = ASKED, **more: Any) -> dict[str, Any]:
    recipe = settle(recipe, None, "new")
    return {"settings": to_json(recipe), "global_batch": recipe.global_batch(), **more}


def changed(**changes: Any) -> Recipe:
    return dataclasses.replace(ASKED, **changes)


def test_a_new_run_records_what_was_left_open() -> None:
    recipe = settle(ASKED, None, "new")
    assert recipe == changed(schedule_steps=100, planned_steps=100, precision="bf16")
    asked = changed(schedule_steps=50, planned_steps=80)
    assert settle(asked, None, "new") == dataclasses.replace(asked, precision="bf16")


@pytest.mark.parametrize("mode", ["resume", "resume_or_new"])
def test_the_same_command_resumes_the_same_recipe(mode: Mode) -> None:
    assert settle(ASKED, recorded(), mode) == settle(ASKED, None, "new")
    elsewhere = settled(ASKED, recorded(), PATH, mode, processes=1, precision="fp32")
    assert elsewhere.precision == "bf16"


@pytest.mark.parametrize(
    ("first", "then", "length"),
    [
        ({}, {"steps": 150}, 150),  # an extended run stretches its schedule
        ({}, {"steps": 80}, 100),
        ({"schedule_steps": 60}, {"steps": 150}, 60),  # unless that had a length of its own
        ({}, {"steps": 150, "schedule_steps": 120}, 120),
    ],
)
def test_the_schedule_of_a_longer_run(
    first: dict[str, int], then: dict[str, int], length: int
) -> None:
    about = recorded(changed(**first))
    recipe = settle(changed(**then), about)
    assert recipe.schedule_steps == length
    assert recipe.planned_steps == about["settings"]["planned_steps"]


@pytest.mark.parametrize(
    ("processes", "batch_size", "accumulate"), [(1, 8, 2), (2, 8, 1), (4, 4, 1), (1, 2, 8)]
)
def test_the_global_batch_stays(processes: int, batch_size: int, accumulate: int) -> None:
    recipe = settle(changed(batch_size=batch_size), recorded(), processes=processes)
    assert recipe.accumulate == accumulate
    assert recipe.global_batch(processes) == 16


@pytest.mark.parametrize("recorded_batch", [16, 0, None, "16"])
def test_a_global_batch_that_cannot_stay_is_refused(recorded_batch: Any) -> None:
    with pytest.raises(RunError, match="3 processes of batch_size 8 do not divide it"):
        settle(ASKED, {**recorded(), "global_batch": recorded_batch}, processes=3)


def test_what_would_change_the_result_is_refused() -> None:
    with pytest.raises(RunError, match=r"runs/one was started.*seed was 0 and is now 1; put these"):
        settle(changed(seed=1), recorded())
    assert settle(changed(data="elsewhere"), recorded()).data == "elsewhere"
    with pytest.raises(RunError, match="data was None and is now 'elsewhere'"):
        settle(changed(data="elsewhere"), recorded(), "resume_or_new")


def test_a_restarted_command_takes_the_micro_batch_that_was_measured() -> None:
    measured = recorded(changed(auto_batch=True, batch_size=4, accumulate=4), auto_batch={})
    recipe = settle(changed(auto_batch=True, evaluate_batch=16), measured, "resume_or_new")
    assert (recipe.batch_size, recipe.accumulate, recipe.evaluate_batch) == (4, 4, 8)
    assert settle(changed(auto_batch=True), measured).batch_size == 8

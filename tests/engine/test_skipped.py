"""A run that skipped most of its updates has failed, however it came to its last step."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from harness import lines
from quintet.engine.config import OptimizerConfig
from quintet.engine.errors import RunError
from quintet.engine.launch import start
from quintet.engine.runs import checkpoint
from quintet.engine.runs.verify import verify
from quintet.engine.skipped import SkippedUpdates, problems, read
from toy import ToyRecipe, ToyTask

BASE = ToyRecipe(steps=8, batch_size=4, workers=0, log_every=3, save_every=4, trackers=())


def train(path: Path, mode: Any = "new", **changes: Any) -> int:
    recipe = dataclasses.replace(BASE, **changes)
    return start(ToyTask, recipe, path, name="toy", mode=mode, progress=False)


def faults(path: Path) -> list[str]:
    return [finding.problem for finding in verify(path, lambda about: ToyTask(BASE)).faults]


def test_a_run_that_skipped_most_of_its_updates_fails_and_keeps_its_checkpoints(
    tmp_path: Path,
) -> None:
    with pytest.raises(RunError, match=r"7 of 8 updates of 'generator'.*lower the learning rate"):
        train(tmp_path / "run", nan_from=1)
    assert checkpoint.steps_in(tmp_path / "run" / "checkpoints") == [4, 8]
    assert any("7 of 8 updates" in e["message"] for e in lines(tmp_path / "run", "events"))
    assert "7 of 8 updates of 'generator' were skipped as not finite" in faults(tmp_path / "run")


def test_half_of_the_updates_may_be_skipped(tmp_path: Path) -> None:
    assert train(tmp_path / "run", nan_from=4) == 8
    assert faults(tmp_path / "run") == []


def test_skipped_updates_are_counted_over_all_starts_of_a_run(tmp_path: Path) -> None:
    """Also those between the last report, at step 3, and the checkpoint."""
    assert train(tmp_path / "run", steps=4, nan_from=2) == 4
    with pytest.raises(RunError, match="6 of 8 updates of 'generator'"):
        train(tmp_path / "run", "resume", steps=8, nan_from=2)
    with pytest.raises(RunError, match="6 of 8 updates of 'generator'"):
        train(tmp_path / "run", "resume", steps=8, nan_from=2)


def test_weights_that_are_not_finite_at_the_end_are_a_failure(tmp_path: Path) -> None:
    too_high = OptimizerConfig(learning_rate=1e39, warmup_steps=0)
    with pytest.raises(RunError, match="the weights of 'generator' are not finite"):
        train(tmp_path / "run", steps=1, generator=too_high)


def test_flags_count_for_their_own_part_alone() -> None:
    table = {0: {"a/skipped": 1.0, "a/loss": 2.0}, 1: {"a/skipped": 0.0, "ab/skipped": 1.0}}
    updates = SkippedUpdates(["a", "ab"], limit=20)
    assert updates.add(table, {0: [], 1: []}, lambda _: None) is None
    assert updates.counts == {"a": (2, 1), "ab": (1, 1)}
    assert problems(updates.counts) == ["1 of 1 updates of 'ab' were skipped as not finite"]
    assert not updates.too_many([])


@pytest.mark.parametrize("hostile", [None, 3, [], {"a": 1}, {"a": [1]}, {"a": ["1", 2]}])
def test_a_checkpoint_without_counts_has_none(hostile: Any) -> None:
    assert read({"updates": hostile}) == {}

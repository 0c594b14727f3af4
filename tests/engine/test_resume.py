"""A run that is killed and resumed is the run that was never killed."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import pytest

from harness import (
    Messages,
    Processes,
    assert_same,
    killed_and_resumed,
    lines,
    run,
    steps_reported,
    tensors,
    trajectory,
)
from quintet.engine.config import OptimizerConfig
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from toy import ToyRecipe, ToyTask

BASE = ToyRecipe(
    steps=40,
    batch_size=4,
    accumulate=2,
    discriminator_start=20,
    workers=0,
    log_every=1,
    save_every=7,
    evaluate_every=13,
    statistics=True,
    trackers=(),
)


def variant(**changes: object) -> ToyRecipe:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


MUON = variant(depth=2, generator=OptimizerConfig(optimizer="muon"))
# One at a time they say what is to blame; the last of the list fails as well.
ALSO_TOGETHER = pytest.mark.slow


@pytest.mark.parametrize(
    ("recipe", "size", "kills"),
    [
        pytest.param(variant(), 1, 4, id="fp32", marks=ALSO_TOGETHER),
        pytest.param(variant(precision="bf16"), 1, 4, id="bf16", marks=ALSO_TOGETHER),
        pytest.param(MUON, 1, 4, id="muon", marks=pytest.mark.slow),  # test_trainer.py resumes it
        pytest.param(variant(workers=2), 1, 4, id="two-workers", marks=ALSO_TOGETHER),
        pytest.param(variant(), 2, 4, id="two-processes", marks=ALSO_TOGETHER),
        pytest.param(variant(workers=2, precision="bf16"), 2, 2, id="two-processes-bf16-workers"),
    ],
)
def test_a_killed_and_resumed_run_is_bit_identical(
    recipe: ToyRecipe, size: int, kills: int, tmp_path: Path
) -> None:
    run(recipe, tmp_path / "straight", size=size)
    killed_and_resumed(recipe, tmp_path / "cut", kills, seed=size, size=size)
    assert_same(tensors(tmp_path / "straight", 40), tensors(tmp_path / "cut", 40))
    assert trajectory(tmp_path / "straight") == trajectory(tmp_path / "cut")


def test_batches_by_length_resume_bit_for_bit(tmp_path: Path) -> None:
    run(BASE, tmp_path / "straight", name="length")
    killed_and_resumed(BASE, tmp_path / "cut", kills=3, seed=5, name="length")
    assert_same(tensors(tmp_path / "straight", 40), tensors(tmp_path / "cut", 40))
    assert trajectory(tmp_path / "straight") == trajectory(tmp_path / "cut")


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_says_so(tmp_path: Path) -> None:
    recipe = variant(save_every=0)
    processes = Processes(recipe, tmp_path / "run")
    processes.wait_until(lambda: len(lines(tmp_path / "run")) > 3)
    processes.signal(signal.SIGKILL)
    processes.wait()
    said = run(recipe, tmp_path / "run", "resume")
    assert "starting at step 0" in said
    assert (tmp_path / "run/checkpoints/step-00000040").is_dir()


@pytest.mark.by_default("new")
@pytest.mark.parametrize("mode", ["new", "resume_or_new"])
def test_a_run_killed_before_its_first_checkpoint_takes_the_corrected_command(
    mode: str, tmp_path: Path
) -> None:
    slow = variant(save_every=1000, evaluate_every=0, slow_step=0.05)
    processes = Processes(slow, tmp_path / "run")
    processes.wait_until(lambda: len(lines(tmp_path / "run")) >= 3)
    processes.signal(signal.SIGKILL)
    processes.wait()
    run(variant(seed=3, steps=8, batch_size=2), tmp_path / "run", mode)
    (event,) = [e for e in lines(tmp_path / "run", "events") if "starting over" in e["message"]]
    assert event["step"] == 0
    run(variant(seed=3, steps=8, batch_size=2), tmp_path / "straight")
    assert trajectory(tmp_path / "run") == trajectory(tmp_path / "straight")


def test_workers_and_save_cadence_do_not_change_a_run(tmp_path: Path) -> None:
    run(BASE, tmp_path / "one")
    run(variant(workers=2, save_every=11, evaluate_every=0), tmp_path / "two")
    assert_same(tensors(tmp_path / "one", 40), tensors(tmp_path / "two", 40))


@pytest.mark.slow  # test_matrix.py
def test_resuming_on_one_process_keeps_the_global_batch_and_the_order(tmp_path: Path) -> None:
    run(BASE, tmp_path / "straight", size=2)
    shutil.copytree(tmp_path / "straight", tmp_path / "moved", ignore=_but_step(35))
    run(BASE, tmp_path / "moved", "resume", size=1)
    orders = [
        [r["order"] for r in lines(tmp_path / name) if "order" in r]
        for name in ("straight", "moved")
    ]
    assert orders[0] == orders[1]
    assert lines(tmp_path / "moved")[-2]["samples"] == 40 * 16


def _but_step(step: int):
    return lambda folder, names: [
        n for n in names if n.startswith("step-") and n != f"step-{step:08d}"
    ]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    run(BASE, tmp_path / "run")
    whole = tensors(tmp_path / "run", 40)
    file = tmp_path / "run/checkpoints/step-00000040/generator.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    said = run(BASE, tmp_path / "run", "resume")
    assert "step-00000040 is damaged (generator.safetensors does not match its digest)" in said
    assert_same(whole, tensors(tmp_path / "run", 40))


@pytest.mark.by_default("resume")
@pytest.mark.parametrize("mode", ["resume", "resume_or_new"])
def test_more_steps_stretch_the_schedule_so_that_the_run_learns(mode: str, tmp_path: Path) -> None:
    run(BASE, tmp_path / "run")
    before = tensors(tmp_path / "run", 40)
    said = run(variant(steps=60), tmp_path / "run", mode)
    assert "schedule is 60 steps long instead of 40; the rate at step 40 is 'generator'" in said
    reports = {r["step"]: r for r in lines(tmp_path / "run") if "generator/learning_rate" in r}
    rates = [reports[step]["generator/learning_rate"] for step in range(41, 61)]
    assert min(rates) > 0
    assert rates == sorted(rates, reverse=True)
    after = tensors(tmp_path / "run", 60)
    weights = [name for name in before if name.startswith("generator.safetensors:")]
    assert any(not before[name].equal(after[name]) for name in weights)


@pytest.mark.slow
def test_an_extended_run_that_is_killed_is_the_one_that_was_not(tmp_path: Path) -> None:
    for name in ("straight", "cut"):
        run(variant(steps=20), tmp_path / name)
    run(BASE, tmp_path / "straight", "resume")
    killed_and_resumed(BASE, tmp_path / "cut", kills=2, seed=3)
    assert_same(tensors(tmp_path / "straight", 40), tensors(tmp_path / "cut", 40))


def test_a_run_whose_learning_rate_would_be_zero_is_refused_with_the_remedy(tmp_path: Path) -> None:
    recipe = variant(schedule_steps=20)
    run(variant(steps=30, schedule_steps=20), tmp_path / "run")
    processes = Processes(recipe, tmp_path / "run", "resume")
    assert processes.wait() == [2]
    assert "the rate would be 0" in processes.said()
    assert "--schedule-steps 40" in processes.said()
    run(variant(schedule_steps=40), tmp_path / "run", "resume")


def at_rate(rate: float, **changes: object) -> ToyRecipe:
    optimizer = dataclasses.replace(BASE.generator, learning_rate=rate, scheduler="constant")
    return variant(generator=optimizer, evaluate_every=0, **changes)


@pytest.mark.by_default("resume")
@pytest.mark.parametrize("mode", ["resume", "resume_or_new"])
def test_the_learning_rate_may_change_and_the_change_is_an_event(mode: str, tmp_path: Path) -> None:
    run(at_rate(1e-2, steps=8), tmp_path / "run")
    run(at_rate(5e-3, steps=12, save_every=100), tmp_path / "run", mode)
    (event,) = [e for e in lines(tmp_path / "run", "events") if "learning rate" in e["message"]]
    said = "learning rate of 'generator' changed from 0.01 to 0.005 at step 8"
    assert event == {"step": 8, "message": said}
    rates = [r[name] for r in lines(tmp_path / "run") if (name := "generator/learning_rate") in r]
    assert rates[4:] == [1e-2] * 4 + [5e-3] * 4
    run(at_rate(5e-3, steps=13), tmp_path / "run", mode)  # no change, no event
    events = lines(tmp_path / "run", "events")
    assert len([e for e in events if "learning rate of" in e["message"]]) == 1


def test_a_changed_rate_that_is_killed_before_a_checkpoint_is_resumed(tmp_path: Path) -> None:
    """config.json has the new rate then, and the checkpoint the old one."""
    run(at_rate(1e-2, steps=8, slow_step=0.05), tmp_path / "run")
    changed = at_rate(5e-3, steps=12, save_every=100, slow_step=0.05)
    processes = Processes(changed, tmp_path / "run", "resume")
    processes.wait_until(lambda: steps_reported(tmp_path / "run") >= 9)
    processes.signal(signal.SIGKILL)
    processes.wait()
    said = run(changed, tmp_path / "run", "resume")
    assert "changed from 0.01 to 0.005 at step 8" in said


def test_a_rate_edited_in_the_configuration_is_refused(tmp_path: Path) -> None:
    run(at_rate(1e-2, steps=8), tmp_path / "run")
    about = json.loads((tmp_path / "run/config.json").read_text())
    about["settings"]["generator"]["learning_rate"] = 5e-3
    (tmp_path / "run/config.json").write_text(json.dumps(about))
    processes = Processes(at_rate(5e-3, steps=12), tmp_path / "run", "resume")
    assert processes.wait() == [2]
    assert "generator.learning_rate was 0.01 and is now 0.005" in processes.said()


def test_a_resume_names_the_versions_and_devices_that_void_exactness(tmp_path: Path) -> None:
    """A checkpoint that other libraries on another machine have written, and the same untouched."""
    recipe = variant(steps=2, device="cpu", workers=0)

    def resumed() -> list[str]:
        folder = RunFolder.open(tmp_path / "run")
        inner = Run(ToyTask(recipe), recipe, World(recipe), folder)
        said = Messages(inner).texts
        inner.restore_latest()
        if not list(folder.checkpoints.glob("step-*")):
            inner.save()
        inner.finish()
        inner.close()
        return [text for text in said if "steps differ from those" in text]

    RunFolder.create(tmp_path / "run", {}).unlock()
    assert resumed() == []
    assert resumed() == []
    path = next((tmp_path / "run/checkpoints").iterdir()) / "state.json"
    page = {
        name: value for name, value in checkpoint.read_about(path.parent).items() if name != "seal"
    }
    assert {"torch", "numpy", "pillow", "python"} <= page["versions"].keys()
    installed = page["versions"]["numpy"]
    page["versions"] |= {"numpy": "1.0", "triton": "2.0", "cudnn": "9", "python": "3.0"}
    page |= {"machine": "another GPU", "threads": 99}
    path.write_text(json.dumps({**page, "seal": checkpoint.seal(page)}))
    (sentence,) = resumed()
    for words in (f"numpy was 1.0, is {installed}", "cudnn was 9, is not there", "another GPU"):
        assert words in sentence
    assert "threads were 99" in sentence
    assert "python" not in sentence
    assert "torch was" not in sentence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"width": 8}, "width was 16 and is now 8"),
        ({"batch_size": 3}, "global batch is 8"),
    ],
)
def test_a_changed_configuration_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    run(variant(steps=2), tmp_path / "run")
    processes = Processes(variant(steps=2, **changes), tmp_path / "run", "resume")
    assert processes.wait() == [2]
    assert message in processes.said()


def test_a_run_that_another_process_trains_is_refused(tmp_path: Path) -> None:
    first = Processes(variant(steps=100_000), tmp_path / "run")
    first.wait_until(lambda: len(lines(tmp_path / "run")) > 2)
    second = Processes(variant(steps=100_000), tmp_path / "run", "resume")
    assert second.wait() == [2]
    assert "is being trained by another process" in second.said()
    first.signal(signal.SIGKILL)
    first.wait()

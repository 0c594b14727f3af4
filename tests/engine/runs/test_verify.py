"""What the doctor knows: the machine, files of any kind, forecasts, and run folders to the end."""

import dataclasses
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from harness import Processes, steps_reported
from quintet.cli.doctor import survey
from quintet.engine.config import from_json
from quintet.engine.errors import RunError
from quintet.engine.launch import start
from quintet.engine.runs import checkpoint
from quintet.engine.runs.verify import Verdict, is_locked, verify
from quintet.engine.tools import doctor, estimate
from toy import ToyRecipe, ToyTask

BASE = ToyRecipe(
    steps=12,
    batch_size=4,
    discriminator_start=6,
    workers=0,
    log_every=1,
    save_every=4,
    evaluate_every=4,
    keep_last=10,
    device="cpu",
    trackers=(),
)

# -- the machine ----------------------------------------------------------------------------


def test_the_machine_is_described_with_what_each_extra_is_for(tmp_path: Path) -> None:
    found = doctor.machine(tmp_path, 100e6)
    assert found["torch"] == torch.__version__
    assert "100 MB/s" in found["disk speed"]
    assert "for reading and writing videos" in found
    assert "GiB" in found["memory"]


def test_the_disk_test_leaves_nothing_and_reports_read_only_folders(tmp_path: Path) -> None:
    speed = doctor.disk_speed(tmp_path)
    assert speed is not None
    assert speed > 0
    assert list(tmp_path.iterdir()) == []
    assert doctor.disk_speed(tmp_path / "nowhere") is None
    assert any("cannot be written" in said for said in doctor.problems(tmp_path, None))
    assert any("5 MB/s" in said for said in doctor.problems(tmp_path, 5e6))


def test_little_shared_memory_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = type("Usage", (), {"free": 64 << 20})
    monkeypatch.setattr(doctor, "SHARED", tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: small)
    assert any("--shm-size" in said for said in doctor.problems(tmp_path, 1e9))


# -- files of any kind ----------------------------------------------------------------------


def test_copies_are_found_by_content_and_not_by_size(tmp_path: Path) -> None:
    contents = {"a": b"one", "b": b"two", "c": b"one", "d": b"longer", "e": b"one", "f": b"two"}
    found = survey.Duplicates()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        found.add(tmp_path / name)
    found.add(tmp_path / "gone")
    named = {a.name: [b.name for b in more] for a, more in found.groups.items()}
    assert named == {"a": ["c", "e"], "b": ["f"]}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    rows = survey.histogram(values)
    assert sum(int(row.split()[-1].replace(",", "")) for row in rows) == len(values)


def test_a_histogram_of_different_magnitudes_is_logarithmic() -> None:
    rows = survey.histogram([1, 2, 4, 8, 16, 32, 64, 128, 256])
    assert len(rows) == survey.ROWS
    assert all("█" in row or "▌" in row for row in rows), "evenly cut, all but two would be empty"
    assert survey.histogram([]) == []
    assert survey.histogram([float("nan")]) == []


# -- forecasts ------------------------------------------------------------------------------

FACTS: dict[str, Any] = {
    "device": "cpu",
    "precision": "fp32",
    "batch_size": 4,
    "accumulate": 2,
    "parameters": {"vae": 2_000_000},
    "peak": 3_000_000_000,
    "memory": 8_000_000_000,
    "checkpoint": 24_000_000,
    "phases": [
        {"start": 0, "seconds": 0.5, "samples": 8, "waiting": 0.1},
        {"start": 600, "seconds": 1.0, "samples": 8, "waiting": 0.0},
    ],
    "evaluation": 10.0,
    "exhibits": 1_000_000,
    "exhibit_seconds": 2.0,
}


def test_a_run_is_forecast_from_what_was_measured() -> None:
    recipe = ToyRecipe(steps=1000, evaluate_every=300, save_every=100, keep_every=500)
    rows = estimate.forecast(recipe, FACTS, 10**12)
    assert rows["memory"].startswith("fits: 3 GB of 8 GB")
    assert "16.0 samples/s" in rows["step"]
    assert "step from 600 on" in rows
    assert rows["evaluations"] == "4, 48 s in all"
    assert rows["run"] == "about 12 min for 1,000 steps"  # 300 + 400 + 48 seconds
    assert rows["checkpoint"] == "24 MB, at most 6 at once"  # 2 newest, 2 kept, best, one written
    assert rows["disk"].startswith("148 MB of 1.0 TB")


def test_the_forecast_reports_what_does_not_fit() -> None:
    recipe = ToyRecipe(steps=1000)
    assert not estimate.fits({**FACTS, "peak": 7_900_000_000}), "a little must be left"
    assert estimate.forecast(recipe, FACTS, 10)["disk"].endswith("NOT ENOUGH")
    assert "memory" not in estimate.forecast(recipe, {}, 10), "what was not measured is left out"


def test_a_recipe_is_measured_by_dry_steps_in_a_folder_of_their_own(tmp_path: Path) -> None:
    facts: dict[str, Any] = {}
    recipe = dataclasses.replace(BASE, auto_batch=True, batch_size=6)
    estimate.measure(ToyTask, recipe, tmp_path, facts.update)
    assert facts["batch_size"] == 6
    assert [phase["start"] for phase in facts["phases"]] == [0, 6]
    assert facts["peak"] > 0
    # Weights and two moments of both, an average of one, a count for each tensor, a mean each.
    assert facts["checkpoint"] == 4 * (114 * 4 + 97 * 3 + 12 + 4)
    assert list(tmp_path.iterdir()) == []


# -- run folders ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve steps, with checkpoints at 4, 8 and 12. Never to be written to."""
    run = tmp_path_factory.mktemp("doctor") / "run"
    start(ToyTask, BASE, run, name="toy", progress=False)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def look(run: Path) -> Verdict:
    def build(about: dict[str, Any]) -> ToyTask:
        try:
            return ToyTask(from_json(ToyRecipe, about.get("settings")))
        except ValueError as error:
            raise RunError(str(error)) from None

    return verify(run, build)


def tree(run: Path) -> dict[str, tuple[int, bytes]]:
    files = sorted(path for path in run.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def at(run: Path, step: int, file: str) -> Path:
    return run / f"checkpoints/step-{step:08d}/{file}"


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    page = json.loads(path.read_text())
    change(page)
    path.write_text(json.dumps(page))


def sealed(run: Path, step: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """A state.json that its seal agrees with."""

    def both(page: dict[str, Any]) -> None:
        change(page)
        page["seal"] = checkpoint.seal(page)

    edit(at(run, step, "state.json"), both)


def rewritten(run: Path, step: int, file: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Other tensors, which digest and seal agree with."""
    path = at(run, step, f"{file}.safetensors")
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    change(tensors)
    digest = checkpoint.write_safetensors(path, tensors)
    facts = {"bytes": path.stat().st_size, "sha256": digest}
    sealed(run, step, lambda page: page["files"].update({path.name: facts}))


def test_a_run_without_damage_has_no_findings_and_is_not_changed(run: Path) -> None:
    before = tree(run)
    verdict = look(run)
    assert verdict.findings == []
    assert verdict.intact == [4, 8, 12]
    assert tree(run) == before


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def swap(run: Path) -> None:
    at(run, 8, "discriminator.safetensors").write_bytes(
        at(run, 12, "discriminator.safetensors").read_bytes()
    )


def renamed(tensors: dict[str, Tensor]) -> None:
    tensors["layer"] = tensors.pop("first.weight")


def widened(tensors: dict[str, Tensor]) -> None:
    tensors["first.weight"] = torch.zeros(3, 3)


def poisoned(tensors: dict[str, Tensor]) -> None:
    tensors["first.weight"][0, 0] = float("nan")


HARM: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a flipped bit": (
        lambda run: flip(at(run, 12, "generator.safetensors")),
        "step-00000012",
        "does not match its digest",
    ),
    "a file of another checkpoint": (swap, "step-00000008", "does not match its digest"),
    "a truncated file": (
        lambda run: os.truncate(at(run, 12, "discriminator.optim.safetensors"), 40),
        "step-00000012",
        "40 bytes instead of",
    ),
    "a missing file": (
        lambda run: at(run, 4, "discriminator.safetensors").unlink(),
        "step-00000004",
        "is missing",
    ),
    "a changed position": (
        lambda run: edit(at(run, 12, "state.json"), lambda page: page.update(samples=1)),
        "step-00000012",
        "seal",
    ),
    "no state at all": (
        lambda run: at(run, 12, "state.json").write_text("{"),
        "step-00000012",
        "state.json cannot be used",
    ),
    "another run's checkpoint": (
        lambda run: sealed(run, 12, lambda page: page.update(run="x")),
        "step-00000012",
        "belongs to another run",
    ),
    "another step's": (
        lambda run: at(run, 12, "").rename(run / "checkpoints/step-00000013"),
        "step-00000013",
        "says step 12",
    ),
    "another seed": (
        lambda run: sealed(run, 12, lambda page: page.update(seed=3)),
        "step-00000012",
        "seed 3",
    ),
    "weights that are not finite": (
        lambda run: rewritten(run, 12, "generator", poisoned),
        "step-00000012",
        "not finite, first.weight",
    ),
    "an average of another name": (
        lambda run: rewritten(run, 12, "generator.ema", renamed),
        "step-00000012",
        "generator.ema: first.weight has shape missing",
    ),
    "weights of another shape": (
        lambda run: rewritten(run, 12, "discriminator", widened),
        "step-00000012",
        "has shape (3, 3), the recipe builds (16, 2)",
    ),
    "a best that is gone": (
        lambda run: edit(run / "best.json", lambda page: page.update(step=5)),
        "best.json",
        "names step 5",
    ),
    "a best that is not JSON": (
        lambda run: (run / "best.json").write_text("?"),
        "best.json",
        "cannot be read",
    ),
    "a record of the data that is not JSON": (
        lambda run: (run / "data.json").write_text("?"),
        "data.json",
        "cannot be read",
    ),
    "a line that is not a record": (
        lambda run: (run / "metrics.jsonl").write_text(
            "[]\n" + (run / "metrics.jsonl").read_text()
        ),
        "metrics.jsonl",
        "line 1 is the first",
    ),
    "another global batch": (
        lambda run: edit(run / "config.json", lambda page: page.update(global_batch=5)),
        "config.json",
        "global_batch is 5",
    ),
    "an unknown setting": (
        lambda run: edit(run / "config.json", lambda page: page["settings"].update(colour=1)),
        "config.json",
        "unknown setting colour",
    ),
    "a frozen stage that is gone": (
        lambda run: edit(run / "config.json", lambda page: page.update(frozen={"codes": "0"})),
        "frozen/codes",
        "is missing",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_every_fault_is_reported_with_its_path_and_repair(harm: str, run: Path) -> None:
    damage, path, problem = HARM[harm]
    damage(run)
    before = tree(run)
    faults = look(run).faults
    assert any(path in fault.path and problem in fault.problem for fault in faults), faults
    assert all(fault.repair for fault in faults)
    assert tree(run) == before


def test_the_repair_of_a_damaged_newest_checkpoint_works(run: Path) -> None:
    flip(at(run, 12, "generator.safetensors"))
    verdict = look(run)
    assert verdict.intact == [4, 8]
    (fault,) = verdict.faults
    assert "resumes from step 8" in fault.repair
    shutil.rmtree(fault.path)
    assert [Path(fault.path).name for fault in look(run).faults] == ["best.json"]
    start(ToyTask, BASE, run, name="toy", mode="resume", progress=False)
    assert look(run).findings == []


def test_without_an_intact_checkpoint_the_repair_is_a_backup(run: Path) -> None:
    for step in (4, 8, 12):
        flip(at(run, step, "discriminator.safetensors"))
    verdict = look(run)
    assert verdict.intact == []
    assert all("from a backup" in f.repair for f in verdict.faults if "step-" in f.path)


def test_the_repair_of_a_missing_best_checkpoint_works(run: Path) -> None:
    edit(run / "best.json", lambda page: page.update(step=5))
    (fault,) = look(run).faults
    assert f"delete {run / 'best.json'}" in fault.repair
    (run / "best.json").unlink()
    assert look(run).faults == []
    more = dataclasses.replace(BASE, steps=14, schedule_steps=12)
    start(ToyTask, more, run, name="toy", mode="resume", progress=False)
    assert look(run).findings == []


def test_a_killed_run_has_no_faults_and_its_partial_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recipe = dataclasses.replace(BASE, steps=10_000, save_every=10, slow_step=0.005)
    processes = Processes(recipe, path)
    processes.wait_until(lambda: steps_reported(path) > 13)
    assert is_locked(path), "it is being trained"
    processes.signal(signal.SIGKILL)
    processes.wait()
    (path / "checkpoints/.step-00000020.1.writing").mkdir(exist_ok=True)
    (path / ".best.json.writing").write_text("{")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    verdict = look(path)
    assert verdict.faults == []
    problems = " ".join(finding.problem for finding in verdict.findings)
    assert "incomplete" in problems
    assert "interrupted write" in problems
    more = dataclasses.replace(recipe, steps=verdict.intact[-1] + 4, schedule_steps=10_000)
    start(ToyTask, more, path, name="toy", mode="resume", progress=False)
    assert look(path).findings == []


def test_a_lock_is_detected_without_taking_it(run: Path) -> None:
    with (run / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(run)
        assert any("is training here" in found.problem for found in look(run).findings)
    assert not is_locked(run)
    (run / ".lock").unlink()
    assert not is_locked(run)
    assert not (run / ".lock").exists()


def test_a_folder_whose_configuration_cannot_be_read_is_refused(run: Path) -> None:
    (run / "config.json").write_text('{"recipe": ')
    with pytest.raises(RunError, match=r"config\.json"):
        look(run)

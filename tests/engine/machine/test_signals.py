"""Signals, the clock, bad numbers and bad disks: a clean stop or a skipped step, said aloud."""

import dataclasses
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import Processes, assert_same, lines, run, steps_reported, tensors
from quintet.engine.errors import RunError
from quintet.engine.machine.signals import HANGUP, Signals
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from toy import ToyRecipe

LONG = ToyRecipe(
    steps=100_000,
    batch_size=4,
    workers=0,
    log_every=1,
    save_every=0,
    evaluate_every=0,
    trackers=(),
)


def variant(**changes: object) -> ToyRecipe:
    return dataclasses.replace(LONG, **changes)  # type: ignore[arg-type]


@pytest.mark.by_default("15-143-2", "2-130-1", "1-129-1")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_at_a_step_that_all_agree_on(
    number: int, status: int, size: int, tmp_path: Path
) -> None:
    processes = Processes(LONG, tmp_path / "run", size=size)
    processes.wait_until(lambda: steps_reported(tmp_path / "run") > 3)
    processes.signal(number, ranks=[size - 1])  # one process is told, all stop
    before = steps_reported(tmp_path / "run")
    assert processes.wait() == [status] * size
    (step,) = checkpoint.steps_in(tmp_path / "run/checkpoints")
    # Steps go on while the signal travels and while this test reads; the agreement takes two.
    assert before <= step <= lines(tmp_path / "run")[-1]["step"]
    assert "the state is saved" in processes.said()
    more = variant(steps=step + 2)
    assert f"resuming at step {step}" in run(more, tmp_path / "run", "resume", size=size)


def test_a_signal_is_granted_at_most_two_steps_later(tmp_path: Path) -> None:
    """The process signals itself at a known step, on both ranks' behalf."""
    recipe = variant(signal_at=5, steps=50)
    processes = Processes(recipe, tmp_path / "run", size=2)
    assert processes.wait() == [143, 143]
    (step,) = checkpoint.steps_in(tmp_path / "run/checkpoints")
    assert 6 <= step <= 8


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    processes = Processes(variant(slow_step=3.0), tmp_path / "run")
    processes.wait_until(lambda: "starting" in processes.said())
    time.sleep(0.5)
    processes.signal(signal.SIGINT)
    time.sleep(0.5)  # two signals at once would arrive as one
    said = "saving after this step or evaluation; press Ctrl-C again to stop without saving"
    assert said in processes.said()
    processes.signal(signal.SIGINT)
    assert processes.wait(20) == [130]
    assert "the state is saved" not in processes.said()


def test_a_hangup_is_ignored_where_it_was_ignored_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nohup` starts a program."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals(None) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.asked() == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with Signals(None) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.asked() == HANGUP
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.by_default("2")
@pytest.mark.parametrize("size", [1, 2])
def test_a_run_that_no_longer_gets_better_stops_when_asked_to(size: int, tmp_path: Path) -> None:
    """Without a learning rate to speak of, the first evaluation stays the best."""
    still = dataclasses.replace(LONG.generator, learning_rate=1e-30)
    recipe = variant(generator=still, evaluate_every=2, stop_when_flat=3)
    processes = Processes(recipe, tmp_path / "run", size=size)
    assert processes.wait() == [0] * size, processes.said()
    assert "stopped at step 8 by stop_when_flat: no new best" in processes.said()
    assert checkpoint.steps_in(tmp_path / "run/checkpoints")[-1] == 8


def test_the_clock_stops_cleanly_and_the_run_goes_on_exactly(tmp_path: Path) -> None:
    straight = variant(steps=12, save_every=5)
    run(straight, tmp_path / "straight")
    processes = Processes(dataclasses.replace(straight, minutes=1e-6), tmp_path / "cut")
    assert processes.wait() == [0]
    assert "by the clock" in processes.said()
    run(straight, tmp_path / "cut", "resume")
    assert_same(tensors(tmp_path / "straight", 12), tensors(tmp_path / "cut", 12))


@pytest.mark.parametrize("size", [1, 2])
def test_a_step_that_is_not_finite_is_skipped_on_all_processes_alike(
    size: int, tmp_path: Path
) -> None:
    """The bad step leaves no trace: neither weights, average, statistics nor moments move."""
    recipe = variant(
        steps=3, nan_at=2, nan_rank=size - 1, save_every=1, keep_last=9, statistics=True
    )
    said = run(recipe, tmp_path / "run", size=size)
    before, after = tensors(tmp_path / "run", 2), tensors(tmp_path / "run", 3)
    mine = [name for name in before if name.startswith("generator")]
    assert mine
    assert_same({n: before[n] for n in mine}, {n: after[n] for n in mine})
    assert "skipped the update of 'generator' at step 3: not finite: generator/loss" in said
    assert "samples [" in said
    assert [r["generator/skipped"] for r in lines(tmp_path / "run") if "order" in r] == [0, 0, 1]


def test_past_the_limit_the_run_stops_and_names_the_cause(tmp_path: Path) -> None:
    recipe = variant(steps=50, nan_from=4, max_skipped=5, save_every=2)
    processes = Processes(recipe, tmp_path / "run")
    assert processes.wait() == [2]
    assert "5 updates of 'generator' in a row were not finite" in processes.said()
    assert "generator/loss" in processes.said()


def test_values_out_of_range_are_refused_at_the_first_batch(tmp_path: Path) -> None:
    processes = Processes(variant(scale=255.0), tmp_path / "run")
    assert processes.wait() == [2]
    assert "divide them by their radius" in processes.said()


def test_a_full_disk_stops_the_run_with_a_sentence_and_keeps_what_was_saved(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = "size=900k"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        recipe = variant(steps=60, save_every=3, keep_last=99, width=256, log_every=30)
        processes = Processes(recipe, disk / "run")
        assert processes.wait() == [2]
        said = processes.said() if processes.log.exists() else ""
        kept = checkpoint.steps_in(disk / "run/checkpoints")
        assert kept
        assert all(
            checkpoint.examine(checkpoint.path_of(disk / "run/checkpoints", s)) is None
            for s in kept
        )
        assert not list((disk / "run/checkpoints").glob(".*.writing"))
        assert "No space left on device" in said
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_a_read_only_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        run(variant(steps=4), disk / "run")
        shutil.move(disk / "run.log", tmp_path / "run.log")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        processes = Processes(variant(steps=8), disk / "run", "resume", log=tmp_path / "again.log")
        assert processes.wait() == [2]
        assert f"{disk / 'run'} cannot be written: Read-only file system" in processes.said()
        assert checkpoint.examine(checkpoint.path_of(disk / "run/checkpoints", 4)) is None
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_an_unwritable_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match="cannot be written"):
        RunFolder.create(tmp_path / "file" / "run", {})


def test_a_vanished_checkpoint_folder_is_a_sentence(tmp_path: Path) -> None:
    processes = Processes(variant(save_every=2), tmp_path / "run")
    processes.wait_until(lambda: steps_reported(tmp_path / "run") > 3)
    os.rename(tmp_path / "run", tmp_path / "moved")
    (status,) = processes.wait()
    assert status == 2, processes.said()
    assert "RunError" in processes.said()


def test_no_worker_outlives_a_killed_run(tmp_path: Path) -> None:
    processes = Processes(variant(workers=2), tmp_path / "run")
    processes.wait_until(lambda: steps_reported(tmp_path / "run") > 2)
    (child,) = processes.children
    workers = subprocess.run(
        ["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    assert workers
    os.kill(child.pid, signal.SIGKILL)
    processes.wait()
    subprocess.run(
        ["timeout", "20", "tail", *[f"--pid={w}" for w in workers], "-f", "/dev/null"], check=False
    )
    assert not [w for w in workers if Path(f"/proc/{w}").exists()]

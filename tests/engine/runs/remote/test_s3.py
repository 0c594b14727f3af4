"""Runs in S3, as moto serves it, in real processes. tests/campaign/stores.py kills them."""

import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import storage
from campaign.stores import RECIPE, steps_in_or
from harness import Processes, assert_same, run, tensors, trajectory
from quintet.engine.runs.remote.bucket import Bucket
from quintet.engine.runs.remote.mirror import Mirror, complete

pytestmark = pytest.mark.slow
SHORT = dataclasses.replace(RECIPE, steps=24, evaluate_every=12)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with storage.server() as address:
        yield address


@pytest.fixture
def proxy(address: str) -> Iterator[storage.Proxy]:
    proxy = storage.Proxy(address)
    yield proxy
    proxy.close()


def steps_stored(url: str, machine: dict[str, str]) -> list[int]:
    with storage.on_machine(machine):
        return complete(Bucket(url).list())


def test_a_stop_by_sigterm_waits_for_the_upload_no_longer_than_it_may(
    proxy: storage.Proxy, tmp_path: Path
) -> None:
    url, machine = "s3://bucket/stop", storage.environment(proxy.address, tmp_path / "a", upload=2)
    path = storage.mirror_of(url, machine)
    slow = dataclasses.replace(SHORT, steps=400, slow_step=0.05)
    processes = Processes(slow, path, environment=machine)
    processes.wait_until(lambda: bool(steps_stored(url, machine)))
    stored, asked = steps_stored(url, machine), len(proxy.requests)
    proxy.fault = lambda method, path: "refused"
    processes.wait_until(lambda: steps_in_or(path) > max(stored) and len(proxy.requests) > asked)
    begun = time.monotonic()
    processes.signal(signal.SIGTERM)
    assert processes.wait() == [143]
    assert time.monotonic() - begun < 30
    said = processes.said()
    assert "could not be uploaded" in said
    assert f"{url} ends with checkpoint" in said
    assert f"quintet resume {url}" in said
    proxy.fault = lambda method, path: None
    there, here = max(steps_stored(url, machine)), steps_in_or(path)
    assert here > there
    short = dataclasses.replace(slow, steps=here + 4)
    again = Processes(short, path, "resume", environment=machine)
    assert again.wait() == [0], again.said()
    assert f"resuming at step {here}" in again.said()
    assert max(steps_stored(url, machine)) == here + 4


def test_a_second_process_is_refused_and_the_first_goes_on(
    proxy: storage.Proxy, tmp_path: Path
) -> None:
    url = "s3://bucket/two"
    one, other = (storage.environment(proxy.address, tmp_path / name) for name in "ab")
    path = storage.mirror_of(url, one)
    recipe = dataclasses.replace(SHORT, steps=400, slow_step=0.2)
    first = Processes(recipe, path, environment=one, log=tmp_path / "1.log")
    first.wait_until(lambda: bool(steps_stored(url, one)))
    for mode in ("new", "resume", "resume_or_new"):
        away = storage.mirror_of(url, other)
        second = Processes(recipe, away, mode, environment=other, log=tmp_path / f"{mode}.log")
        assert second.wait() == [2]
        assert "is being trained by process" in second.said()
        assert "holds it until" in second.said()
    before = steps_in_or(path)
    first.wait_until(lambda: steps_stored(url, one)[-1] > before)
    first.signal(signal.SIGTERM)
    assert first.wait() == [143], first.said()
    assert steps_stored(url, one)[-1] == steps_in_or(path)


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_in_s3_equals_one_on_disk_after_a_move(
    size: int, proxy: storage.Proxy, tmp_path: Path
) -> None:
    """With two processes only the first uploads."""
    run(SHORT, tmp_path / "disk", size=size)
    url = f"s3://bucket/equal-{size}"
    half = dataclasses.replace(SHORT, steps=12, schedule_steps=24, planned_steps=24)
    for name, recipe in (("a", half), ("b", SHORT)):
        machine = storage.environment(proxy.address, tmp_path / name)
        path = storage.mirror_of(url, machine)
        log = tmp_path / f"{name}.log"
        each = Processes(recipe, path, "resume_or_new", size, log=log, environment=machine)
        assert each.wait() == [0] * size, each.said()
    with storage.on_machine(storage.environment(proxy.address, tmp_path / "c")):
        assert Mirror.at(url).pull("all", pytest.fail)
        mirror = Mirror.at(url).path
    assert_same(tensors(mirror, 24), tensors(tmp_path / "disk", 24))
    assert trajectory(mirror) == trajectory(tmp_path / "disk")

"""A process dies, all are restarted by the launcher, and the run ends as if nothing was."""

import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

import harness
from harness import assert_same, tensors, trajectory
from many import Elastic, Hosts
from quintet.engine.machine import rendezvous
from toy import ToyRecipe

RECIPE = ToyRecipe(
    steps=40,
    batch_size=4,
    workers=0,
    trackers=(),
    device="cpu",
    log_every=1,
    save_every=5,
    evaluate_every=0,
    slow_step=0.02,
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which no process died."""
    path = tmp_path_factory.mktemp("straight") / "run"
    harness.run(RECIPE, path, size=2)
    return path


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_costs_the_steps_since_the_last_checkpoint(
    rank: int, straight: Path, tmp_path: Path
) -> None:
    run = Elastic(RECIPE, tmp_path / "elastic" / "run")
    run.wait_for_step(10)
    os.kill(run.pid(rank), signal.SIGKILL)
    assert run.wait() == 0, run.said()
    assert run.attempts() == 2, run.said()
    assert_same(tensors(straight, 40), tensors(run.path, 40))
    assert trajectory(straight) == trajectory(run.path)


# -- two hosts -------------------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    recipe = dataclasses.replace(RECIPE, steps=60, precision="fp32", slow_step=0.1)
    (tmp_path / "hosts").mkdir()
    try:
        opened = Hosts(recipe, tmp_path / "hosts" / "run").__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine allows no network namespaces: {error}")
    yield opened
    opened.__exit__()


def wait_for_step(hosts: Hosts, step: int) -> None:
    deadline = time.monotonic() + 90
    while not (hosts.path / "checkpoints" / f"step-{step:08d}").exists():
        assert time.monotonic() < deadline, hosts.said()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_host_that_is_cut_off_and_comes_back_leaves_no_trace(
    power: str, hosts: Hosts, tmp_path: Path
) -> None:
    """With its power on it is missed for longer than members are waited for (15 seconds)."""
    harness.run(hosts.recipe, tmp_path / "straight", size=2)
    hosts.launch(0)
    hosts.launch(1)
    wait_for_step(hosts, 10)
    hosts.cable("down")
    if power == "fails":
        hosts.kill(1)
    time.sleep(20 if power == "stays" else 3)
    hosts.cable("up")
    if power == "fails":
        hosts.launch(1)
    assert [hosts.launchers[host].wait(150) for host in (0, 1)] == [0, 0], hosts.said()
    assert_same(tensors(tmp_path / "straight", 60), tensors(hosts.path, 60))
    assert trajectory(tmp_path / "straight") == trajectory(hosts.path)


# -- agreeing on a name ----------------------------------------------------------------------------


def names_of(store: dist.TCPStore, ranks: range, size: int) -> dict[int, str]:
    """What the processes of an attempt agree on, with a thread for each."""
    found: dict[int, str] = {}

    def member(rank: int) -> None:
        own = dist.TCPStore(store.host, store.port, is_master=False)
        found[rank] = rendezvous.agreed_name(own, rank, size, time.monotonic() + 20)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_every_attempt_agrees_on_a_name_of_its_own(store: dist.TCPStore) -> None:
    attempts = [names_of(store, range(4), 4) for _ in range(3)]
    assert all(len(names) == 4 and len(set(names.values())) == 1 for names in attempts)
    assert len({names[0] for names in attempts}) == 3


def test_words_of_the_dead_are_not_taken_for_those_of_the_living(store: dist.TCPStore) -> None:
    """Some of the attempt before had written their words, and its first had repeated them."""
    names_of(store, range(3), 3)
    store.set("quintet/word/1", "dead")
    store.set("quintet/repeated", '["dead leader", "dead leader", "dead", "dead too"]')
    names = names_of(store, range(3), 3)
    assert len(set(names.values())) == 1
    assert not {"dead", "dead leader", "dead too"} & {*names[0].split("/")}


def test_whoever_waits_in_vain_says_so(store: dist.TCPStore) -> None:
    with pytest.raises(TimeoutError, match="did not join"):
        rendezvous.agreed_name(store, 1, 2, time.monotonic() + 0.2)


def test_without_a_launcher_that_keeps_the_store_nothing_is_agreed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert not rendezvous.is_needed()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert rendezvous.is_needed()

"""Runs on several processes beyond what harness.py does: state as it is after loading, runs under
torch's own elastic agent, and hosts that can be cut off. Called as a script it is a process of such
a run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness import _context, free_port
from quintet.engine.config import from_json, to_json
from quintet.engine.launch import start
from quintet.engine.loop import take_step
from quintet.engine.machine.fsdp import local
from quintet.engine.machine.world import World, shut_down
from quintet.engine.run import Run
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder
from toy import ToyRecipe, ToyTask


def in_processes(size: int, work: Callable[..., None], *args: Any) -> None:
    """Call `work(rank, *args)` in processes that can form a group."""
    port = free_port()
    children = [
        _context.Process(target=_member, args=(rank, size, port, work, args))
        for rank in range(size)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        if child.exitcode is None:
            child.kill()
    assert [child.exitcode for child in children] == [0] * size


def _member(rank: int, size: int, port: int, work: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    if size > 1:
        words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {name: str(value) for name, value in words.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(rank, *args)
    shut_down()


def _write_loaded(rank: int, recipe: ToyRecipe, path: Path, out: Path) -> None:
    run = Run(ToyTask(recipe), recipe, World(recipe), RunFolder.open(path))
    run.restore_latest()
    files = {file: tensors for part in run.parts.values() for file, tensors in part.state().items()}
    copied = checkpoint.snapshot(files, keep=run.world.is_main)
    if run.world.is_main:
        flat = {f"{file}.safetensors:{n}": t for file, ts in copied.items() for n, t in ts.items()}
        save_file(flat, out)
    run.close()


def _write_share(rank: int, recipe: ToyRecipe, out: Path) -> None:
    """How many numbers this process holds of weights, averages and moments."""
    run = Run(ToyTask(recipe), recipe, World(recipe), RunFolder(out.parent))
    take_step(run)
    held = {"weights": 0, "averages": 0, "moments": 0, "all": 0}
    for part in run.parts.values():
        held["all"] += sum(p.numel() for p in part.parameters.values())
        held["weights"] += sum(local(p).numel() for p in part.module.parameters())
        held["averages"] += sum(v.numel() for v in part.average.values) if part.average else 0
        held["moments"] += sum(s["exp_avg"].numel() for s in part.optimizer.state.values())
    (out / f"{rank}.json").write_text(json.dumps(held))
    run.close()


def shares(recipe: ToyRecipe, out: Path, size: int) -> list[dict[str, int]]:
    """What each of `size` processes holds after a step."""
    out.mkdir()
    in_processes(size, _write_share, recipe, out)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(size)]


def loaded(recipe: ToyRecipe, path: Path, size: int) -> dict[str, Tensor]:
    """What `size` processes hold together once they have loaded the newest checkpoint."""
    out = path.parent / f"{path.name}.loaded"
    in_processes(size, _write_loaded, recipe, path, out)
    return load_file(out)


# -- under torch's elastic agent ------------------------------------------------------------------


def _worker(recipe: ToyRecipe, path: Path) -> None:
    torch.set_num_threads(1)
    place = path.parent / f"rank{os.environ['RANK']}.pid"
    place.write_text(str(os.getpid()))
    start(ToyTask, recipe, path, name="toy", mode="resume_or_new", progress=False)
    shut_down()


def _agent(recipe: ToyRecipe, path: Path, size: int, logs: Path) -> None:
    """What torchrun --standalone does, but its processes are forked: they have imported torch."""
    os.environ["OMP_NUM_THREADS"] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        max_restarts=3,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=path.name,
        start_method="fork",
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    elastic_launch(config, _worker)(recipe, path)


class Elastic:
    """A run under an agent that restarts all of its processes when one dies."""

    def __init__(self, recipe: ToyRecipe, path: Path, size: int = 2):
        self.path, self.logs = path, path.parent / "logs"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.agent = _context.Process(target=_agent, args=(recipe, path, size, self.logs))
        self.agent.start()

    def pid(self, rank: int) -> int:
        return int((self.path.parent / f"rank{rank}.pid").read_text())

    def wait_for_step(self, step: int, seconds: float = 60) -> None:
        wanted = checkpoint.path_of(self.path / "checkpoints", step)
        deadline = time.monotonic() + seconds
        while not wanted.exists():
            assert time.monotonic() < deadline, self.said()
            assert self.agent.is_alive(), self.said()
            time.sleep(0.005)

    def wait(self, seconds: float = 120) -> int | None:
        self.agent.join(seconds)
        if self.agent.exitcode is None:
            self.agent.terminate()
            raise AssertionError(f"the run hung:\n{self.said()}")
        return self.agent.exitcode

    def attempts(self) -> int:
        return len({file.parent.parent for file in self.logs.rglob("stderr.log")})

    def said(self) -> str:
        return "\n".join(f"{f}:\n{f.read_text()}" for f in sorted(self.logs.rglob("*.log")))


# -- hosts -----------------------------------------------------------------------------------------


class Hosts:
    """Two network namespaces with a cable between them, each a host with a launcher of its own."""

    def __init__(self, recipe: ToyRecipe, path: Path):
        self.recipe, self.path = recipe, path
        self.names = [f"quintet{os.getpid()}{letter}" for letter in "ab"]
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Hosts":
        first, second = self.names
        try:
            for name in self.names:
                _ip("netns", "add", name)
            _ip("link", "add", "v0", "netns", first, "type", "veth", "peer", "v1", "netns", second)
            for host, name in enumerate(self.names):
                _ip("-n", name, "addr", "add", f"10.77.0.{host + 1}/24", "dev", f"v{host}")
                for device in ("lo", f"v{host}"):
                    _ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host, name in enumerate(self.names):
            if Path("/run/netns", name).exists() or Path("/var/run/netns", name).exists():
                self.kill(host)
                subprocess.run(["ip", "netns", "del", name], check=False)

    def launch(self, host: int) -> None:
        """torchrun, as docs/scaling.md has it for several nodes. The first host keeps the list of
        members; here it cannot be told by its name, because both have the same."""
        words = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=5", "--monitor-interval=0.1"]
        words += ["--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29500", "--rdzv-id=cut"]
        words += [f"--rdzv-conf=is_host={int(host == 0)}", f"--local-addr=10.77.0.{host + 1}"]
        settings = json.dumps(to_json(self.recipe))
        command = [sys.executable, "-m", "torch.distributed.run", *words, __file__, settings]
        shared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        with open(self.path.parent / f"host{host}.log", "ab") as log:
            self.launchers[host] = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *command, str(self.path)],
                env={**os.environ, **shared, "GLOO_SOCKET_IFNAME": f"v{host}"},
                stdout=log,
                stderr=log,
            )

    def cable(self, state: str) -> None:
        _ip("-n", self.names[1], "link", "set", "v1", state)

    def kill(self, host: int) -> None:
        """Everything that runs on a host, as if its power had failed."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[host]], stdout=subprocess.PIPE, check=False
        )
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if host in self.launchers:
            self.launchers.pop(host).wait(10)

    def said(self) -> str:
        return "\n".join(f.read_text() for f in sorted(self.path.parent.glob("host*.log")))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


if __name__ == "__main__":
    _worker(from_json(ToyRecipe, json.loads(sys.argv[1])), Path(sys.argv[2]))

"""The real program in real processes: forked from a parent that has imported everything but has
run nothing, or fresh ones."""

import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

TESTS = Path(__file__).parents[1]
LAUNCHER = 10.0
"""Seconds after which a launcher kills the processes that another's failure has left behind."""

# The server takes its path from the environment alone.
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["campaign.preload"])


class Process(Protocol):
    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...


class Fresh:
    """A new interpreter, which imports everything itself."""

    def __init__(self, words: Sequence[str], rank: int, size: int, port: int, log: Path):
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quintet", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **surroundings(rank, size, port), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def exitcode(self) -> int | None:
        return self.process.poll()

    def join(self, timeout: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)


def surroundings(rank: int, size: int, port: int) -> dict[str, str]:
    """What a launcher would set."""
    if size == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _child(
    words: Sequence[str], rank: int, size: int, port: int, log: Path, hook: Callable[[], Any] | None
) -> None:
    os.setsid()  # so that a kill reaches the workers of the data loader too
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ |= surroundings(rank, size, port)
    if hook is not None:
        hook()
    import torch

    from quintet.cli import main

    torch.set_num_threads(1)
    status: Any = 1
    try:
        main(list(words))
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status or 0))


class Program:
    """A command under way on `size` processes; its folder is `path`, its words go to a log."""

    def __init__(
        self,
        words: Sequence[str],
        path: Path,
        size: int = 1,
        hook: Callable[[], Any] | None = None,
        fresh: bool = False,
        log: Path | None = None,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.log = path, log or path.parent / f"{path.name}.log"
        self.log.unlink(missing_ok=True)
        self.began = time.monotonic()
        port = free_port()
        self.children: list[Any] = []
        for rank in range(size):
            if fresh:
                self.children.append(Fresh(words, rank, size, port, self.log))
                continue
            arguments = (words, rank, size, port, self.log, hook if rank == 0 else None)
            child = _context.Process(target=_child, args=arguments, daemon=True)
            child.start()
            self.children.append(child)

    @property
    def running(self) -> bool:
        return any(child.exitcode is None for child in self.children)

    def signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        for rank, child in enumerate(self.children):
            if child.exitcode is None and (ranks is None or rank in ranks):
                with contextlib.suppress(ProcessLookupError):
                    whole = number == signal.SIGKILL and os.getpgid(child.pid) == child.pid
                    (os.killpg if whole else os.kill)(child.pid, number)

    def wait(self, seconds: float = 120) -> list[int | None]:
        """Exit statuses; whoever has not ended by then is killed and shows as None.

        Like a launcher it ends those that one of them has left behind.
        """
        deadline = time.monotonic() + seconds
        while self.running and (left := deadline - time.monotonic()) > 0:
            if any(child.exitcode for child in self.children):
                deadline = min(deadline, time.monotonic() + LAUNCHER)
            for child in self.children:
                child.join(min(left, 0.1))
        statuses = [child.exitcode for child in self.children]
        self.signal(signal.SIGKILL)
        for child in self.children:
            child.join()
        return statuses

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def sentence(self) -> str:
        """The one line that refuses what was asked, or nothing."""
        spoken = [line for line in self.said().splitlines() if line.startswith("quintet: ")]
        return spoken[0] if len(spoken) == 1 and "Traceback" not in self.said() else ""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(holds: Callable[[], bool], program: Program, seconds: float = 120) -> bool:
    """Wait for something of a program that runs; False where it ended or took too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline or not program.running:
            return False
        time.sleep(0.002)
    return True


def import_everything() -> None:
    for module in ("torch._dynamo", "torch._inductor"):  # every child would import them anew
        importlib.import_module(module)

    from quintet import rooms
    from quintet.cli import COMMANDS

    for command in COMMANDS.values():
        importlib.import_module(f"quintet.cli.{command.partition(':')[0]}")
    for room in rooms.rooms():
        for family in rooms.Room(room).families:
            assert family.task
            assert family.sample
    for module in ("engine.launch", "engine.runs.verify", "engine.tools.estimate", "report"):
        importlib.import_module(f"quintet.{module}")

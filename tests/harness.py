"""Real runs in real processes, started quickly: forked from a server that has imported everything
but has run nothing (a fork of a process with live OpenMP threads can hang)."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # the first optimizer would import it, in every child anew
from safetensors.torch import load_file
from torch import Tensor

from quintet import rooms
from quintet.engine import building
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError, Stopped
from quintet.engine.launch import start
from quintet.engine.machine.world import shut_down
from quintet.engine.run import Run
from quintet.engine.runs.sinks import Sink
from quintet.mesh import exhibits
from quintet.speech import recognition
from toy import LengthTask, ToyRecipe, ToyTask, WitnessTask

TESTS = Path(__file__).parent
TASKS = {"toy": ToyTask, "length": LengthTask, "witness": WitnessTask}

# The server takes its path from the environment alone; without it, it would preload nothing.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
)
_context = multiprocessing.get_context("forkserver")


def task_of(name: str, measured: bool) -> Callable[[Any], Any]:
    """A task of the tests, or of the recipe that is called so; without held-out data it is not
    measured, which changes no step and would be most of the time of a few steps."""

    def build(settings: Any) -> Any:
        task = TASKS[name](settings) if name in TASKS else rooms.build(settings)
        opened = task.data
        if not measured:
            task.data = lambda split: opened(split) if split == "train" else None
        return task

    return build


def draw_small() -> None:
    """Pictures of meshes, which took a tenth of the time of all tests of meshes. No test looks at
    how large they are; media/meshes/test_render.py draws its own."""
    exhibits.SIDE = 64


HEARD = recognition.UTTERANCES


def hear_little() -> None:
    """A classifier of syllables fitted on few utterances, where a run takes a second for it in
    each process. Tests of what it recognises take `well_heard` (speech/conftest.py)."""
    recognition.UTTERANCES = 16


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Runs of this process hold nothing out and are not evaluated, which changes no step."""
    opened = building.held_out
    building.held_out = lambda *_: None
    try:
        yield
    finally:
        building.held_out = opened


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _prepare(rank: int, size: int, port: int, log: Path) -> None:
    """Of a child: what it says goes to a file, and the others are found."""
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if size > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    torch.set_num_threads(1)


def _child(
    rank: int,
    size: int,
    port: int,
    recipe: Recipe,
    path: Path,
    mode: str,
    name: str,
    log: Path,
    measured: bool,
    environment: Mapping[str, str],
) -> None:
    os.environ.update(environment)
    os.setsid()  # so that a kill reaches the workers of the data loader too
    os.environ["TOY_FOLDER"] = str(path)
    _prepare(rank, size, port, log)
    status = 0
    try:
        start(task_of(name, measured), recipe, path, name=name, mode=mode, load=rooms.load)  # type: ignore[arg-type]
    except (RunError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = 2
    except Stopped as stop:
        print(f"Stopped: {stop}", file=sys.stderr)
        status = stop.status
    sys.stdout.flush()
    sys.stderr.flush()
    if status == 0:
        shut_down()
    os._exit(status)


class Processes:
    """A run under way on `size` processes."""

    def __init__(
        self,
        recipe: Recipe,
        path: Path,
        mode: str = "new",
        size: int = 1,
        name: str = "toy",
        log: Path | None = None,
        measured: bool = True,
        environment: Mapping[str, str] | None = None,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.log = path, log or path.parent / f"{path.name}.log"
        port = free_port()
        self.children = [
            _context.Process(
                target=_child,
                args=(
                    *(rank, size, port, recipe, path, mode, name, self.log, measured),
                    environment or {},
                ),
            )
            for rank in range(size)
        ]
        for child in self.children:
            child.start()

    def signal(self, number: int, ranks: list[int] | None = None) -> None:
        for rank, child in enumerate(self.children):
            if child.pid and (ranks is None or rank in ranks):
                with contextlib.suppress(ProcessLookupError):
                    if number == signal.SIGKILL and os.getpgid(child.pid) == child.pid:
                        os.killpg(child.pid, number)
                    else:
                        os.kill(child.pid, number)

    def wait(self, seconds: float = 120) -> list[int | None]:
        deadline = time.monotonic() + seconds
        for child in self.children:
            child.join(max(0.1, deadline - time.monotonic()))
        if any(child.exitcode is None for child in self.children):
            self.signal(signal.SIGKILL)
            raise AssertionError(f"the run hung:\n{self.said()}")
        return [child.exitcode for child in self.children]

    def wait_until(self, holds: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline or all(c.exitcode is not None for c in self.children):
                self.signal(signal.SIGKILL)
                raise AssertionError(f"the run ended or hung before that:\n{self.said()}")
            time.sleep(0.005)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def run(
    recipe: Recipe,
    path: Path,
    mode: str = "new",
    size: int = 1,
    name: str = "toy",
    measured: bool = True,
) -> str:
    """Run to the end; returns what was said."""
    processes = Processes(recipe, path, mode, size, name, measured=measured)
    statuses = processes.wait()
    assert statuses == [0] * size, processes.said()
    return processes.said()


def run_each(runs: Sequence[tuple[Recipe, Path, str]], size: int = 1, seconds: float = 600) -> None:
    """Several runs (recipe, folder, name), one after another, by the same processes."""
    port, log = free_port(), runs[0][1].parent / "each.log"
    children = [
        _context.Process(target=_each, args=(r, size, port, runs, log)) for r in range(size)
    ]
    for child in children:
        child.start()
    deadline = time.monotonic() + seconds
    for child in children:
        child.join(max(0.1, deadline - time.monotonic()))
    statuses = [child.exitcode for child in children]
    for child in children:
        child.kill()
    assert statuses == [0] * size, log.read_text()


def _each(
    rank: int, size: int, port: int, runs: Sequence[tuple[Recipe, Path, str]], log: Path
) -> None:
    _prepare(rank, size, port, log)
    for recipe, path, name in runs:
        start(task_of(name, False), recipe, path, name=name, load=rooms.load, progress=False)
    shut_down()


class Messages(Sink):
    """What a run says from now on."""

    def __init__(self, run: Run):
        self.texts: list[str] = []
        run.reporter.sinks.append(self)

    def event(self, step: int, message: str) -> None:
        self.texts.append(message)


def lines(path: Path, kind: str = "metrics") -> list[dict[str, Any]]:
    file = path / f"{kind}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def steps_reported(path: Path) -> int:
    try:
        return lines(path)[-1]["step"]
    except (IndexError, ValueError):
        return 0


def killed_and_resumed(
    recipe: ToyRecipe, path: Path, kills: int, seed: int, size: int = 1, name: str = "toy"
) -> None:
    """Kill a run at random moments, resume it each time, and let the last one finish."""
    chance = random.Random(seed)
    for _ in range(kills):
        before = steps_reported(path)
        processes = Processes(recipe, path, "resume_or_new", size, name)
        ahead = chance.randint(0, max(1, recipe.steps // kills))
        try:
            processes.wait_until(lambda: steps_reported(path) >= min(before, 1) + ahead)  # noqa: B023
        except AssertionError:
            break  # it came to its end first
        time.sleep(chance.random() * 0.02)
        processes.signal(signal.SIGKILL)
        processes.wait()
    run(recipe, path, "resume_or_new", size, name)


def tensors(path: Path, step: int) -> dict[str, Tensor]:
    folder = path / "checkpoints" / f"step-{step:08d}"
    return {
        f"{file.name}:{name}": tensor.clone()  # loaded ones share memory with the file
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert one
    different = [name for name in one if not one[name].equal(other[name])]
    assert not different, different


TIMED = {"seconds", "samples_per_second", "waiting"}


def trajectory(path: Path) -> list[dict[str, Any]]:
    """Every report, without what the clock says."""
    return [{k: v for k, v in line.items() if k not in TIMED} for line in lines(path)]


class Said(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line that refuses what was asked."""
        spoken = [line for line in self.err.splitlines() if line.startswith("quintet: ")]
        assert self.status == 2, self
        assert len(spoken) == 1, self
        return spoken[0]

"""When a run is compiled: at once (`on`), never (`off`), or once its steps show that it pays.

With `auto` a new run on a GPU takes its first steps as they are and times them. It is compiled from
then on if that saves more time than it takes. The choice is recorded in config.json, because
compiled and eager steps differ in their last bits: a resumed run makes the same one.
"""

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from quintet.engine.config import Recipe
from quintet.engine.machine.capture import Capture
from quintet.engine.machine.world import World
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Task

RECORD = "compiled_from"
"""In config.json: the step from which the run is compiled, null for never, or `UNDECIDED`. Without
it, from the first step."""
UNDECIDED = "undecided"
WARM, TIMED = 8, 12
"""Steps before the timed ones, in which kernels are chosen and steps captured, and the timed."""
SECONDS = 40.0
"""What compiling takes, roughly: the tenth step of the rooms came after 24 to 77 seconds. Near the
point where it pays either choice takes about as long, so that no better estimate is needed."""
SECONDS_A_SHAPE = 13.0
"""For each further shape of batches: 12 to 13 seconds for each length of speech."""
SAVED = 0.45
"""Share of a captured step that compiling saves: 0.47 to 0.54 in the rooms."""

Mark = float | torch.cuda.Event


def pays(seconds: float, shapes: int = 1) -> bool:
    """Whether compiling for so many shapes pays if the rest of the run takes so long without it."""
    return SAVED * seconds > SECONDS + SECONDS_A_SHAPE * (shapes - 1)


class Compiler:
    """Compiles the networks of a run at the step that was chosen, with a message."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        world: World,
        folder: RunFolder,
        capture: Capture | None,
        say: Callable[[str], None],
    ):
        self.recipe, self.world, self.folder = recipe, world, folder
        self.capture, self.say = capture, say
        self.began = time.monotonic()
        self.networks = {
            name: part.network
            for name, part in task.parts.items()
            if part.compiles
            and (part.compiles_captured or recipe.compile == "on" or not world.captures)
        }
        self.start = self._start() if self.networks else None
        """A step, UNDECIDED, or None for never."""
        self.compiled = False
        self.marks: list[tuple[Mark, Mark]] = []
        self.graphs, self.hits, self.seconds = 0, 0, 0.0
        """Compiled since the run last spoke of it: graphs, those from the cache, and how long."""

    def _start(self) -> int | str | None:
        if self.recipe.compile == "on" or not self.world.compiles:
            return 0 if self.world.compiles else None
        recorded = self.folder.about.get(RECORD, 0)
        return recorded if recorded in (None, UNDECIDED) or type(recorded) is int else 0

    @contextmanager
    def step(self, step: int) -> Generator[None, None, None]:
        """Around each step."""
        if not self.compiled and isinstance(self.start, int) and step >= self.start:
            self._compile()
        timed = self.start == UNDECIDED and len(self.marks) < WARM + TIMED
        mark = self._mark() if timed else None
        before, begun = _counts() if self.compiled else (0, 0), time.perf_counter()
        yield
        if mark is not None:
            self.marks.append((mark, self._mark()))
        if self.compiled:
            self._tell(before, time.perf_counter() - begun)

    def decide(self, step: int) -> None:
        """After a step: whether to compile the rest of the run, as soon as enough were timed."""
        if self.start != UNDECIDED or len(self.marks) < WARM + TIMED:
            return
        left = self.recipe.steps - step
        seconds = statistics.median(_between(*pair) for pair in self.marks[WARM:])
        rest = left * seconds
        if self.recipe.minutes is not None:
            rest = min(rest, 60 * self.recipe.minutes - (time.monotonic() - self.began))
        shapes = self.capture.shapes if self.capture is not None else 1
        self.start = step if self.world.from_main(pays(rest, shapes)) else None
        self.marks.clear()
        if self.world.is_main:
            self.folder.write_config({**self.folder.about, RECORD: self.start})
        verdict = "not compiled" if self.start is None else "to be compiled"
        self.say(f"{verdict}: {left} steps of {1e3 * seconds:.3g} ms are left")

    def _compile(self) -> None:
        self.compiled = True
        names: list[str] = []
        for name, network in self.networks.items():
            blocks = self.world.compile(network)
            names.append(f"{blocks} blocks of {name}" if blocks else name)
        if self.capture is not None:
            self.capture.drop()
        self.say(f"compiling {', '.join(names)} …")

    def _tell(self, before: tuple[int, int], seconds: float) -> None:
        """Compiling blocks the host, so the host's clock tells how long it took."""
        graphs, hits = (now - then for now, then in zip(_counts(), before))
        if graphs:
            self.graphs, self.hits = self.graphs + graphs, self.hits + hits
            self.seconds += seconds
        elif self.graphs:
            cached = f", {self.hits} of them from the cache" if self.hits else ""
            self.say(f"compiled {self.graphs} graphs in {self.seconds:.0f} s{cached}")
            self.graphs, self.hits, self.seconds = 0, 0, 0.0

    def _mark(self) -> Mark:
        if self.world.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    return end - begin  # type: ignore[operator]


def _counts() -> tuple[int, int]:
    """Graphs that this process has compiled, and those of them that came from the cache."""
    from torch._dynamo.utils import counters  # slow to import where nothing is compiled

    return counters["stats"]["unique_graphs"], counters["aot_autograd"]["autograd_cache_hit"]

"""One small run that something is done to, and the judgement of it."""

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import subjects
from campaign.children import Program, until
from campaign.subjects import Subject, differs, reports
from campaign.table import Case, Result
from quintet.engine.runs.checkpoint import steps_in


class Wrong(Exception):
    """The program did not do what it promises; the message says what it did."""


def require(holds: object, problem: str) -> None:
    if not holds:
        raise Wrong(problem)


@dataclass
class Trial:
    name: str
    recipe: str = "image/vqgan_tiny"
    size: int = 1

    def __post_init__(self) -> None:
        self.subject = Subject(self.recipe)
        self.lost = 0
        self.injected = True
        self.logs: list[Path] = []  # outside of the disk that is broken

    @property
    def place(self) -> Path:
        return subjects.FOLDER / "trials" / re.sub(r"\W+", "-", self.name)

    @property
    def path(self) -> Path:
        return self.place / "disk" / "run"

    @property
    def reference(self) -> Path:
        return self.subject.reference(self.size)

    @property
    def taken(self) -> int:
        """The last step that was reported."""
        return max((line["step"] for line in reports(self.path)), default=0)

    @property
    def kept(self) -> int:
        return max(steps_in(self.path / "checkpoints"), default=0)

    def start(self, hook: Callable[[], Any] | None = None, *more: object) -> Program:
        words, log = self.subject.words(self.path, *more), self.place / f"{len(self.logs)}.log"
        self.logs.append(log)
        return Program(words, self.path, self.size, hook, log=log)

    def reach(self, program: Program, step: int) -> None:
        came = until(lambda: self.taken >= step, program)
        require(came, f"it did not come to step {step}: {program.said()[-300:]}")

    def stopped(self, program: Program, seconds: float = 120) -> str:
        """With status 2 and one sentence; a launcher may have ended all but the first process."""
        statuses = program.wait(seconds)
        alike = statuses[0] == 2 and {*statuses} <= {2, None}
        require(alike, f"statuses {statuses}: {program.said()[-400:]}")
        require(program.sentence(), f"not one sentence: {program.said()[-400:]}")
        return program.sentence()

    def refused(self, program: Program) -> str:
        """As above, and no checkpoint may be unsound."""
        said = self.stopped(program)
        self.lost = self.taken - self.kept
        self.sound()
        return said

    def came_too_late(self, program: Program) -> bool:
        """Whether the run ended before the fault could reach it, which then counts as none."""
        if program.wait() != [0] * self.size:
            return False
        self.ends_alike(program)
        self.injected = False
        return True

    def sound(self) -> None:
        problem = differs(self.path, self.reference, ended=False)
        require(not problem, problem)

    def ends_alike(self, program: Program | None = None) -> None:
        """Undisturbed from here on, or as far as `program` is, it must end as the reference."""
        program = program or self.start()
        statuses = program.wait(300)
        require(statuses == [0] * self.size, f"statuses {statuses}: {program.said()[-400:]}")
        problem = differs(self.path, self.reference, ended=True)
        require(not problem, problem)


def case(kind: str, name: str, trial: Trial, act: Callable[[Trial], str]) -> Case:
    """`act` injects the fault and judges; it returns a note, or raises Wrong."""

    def run() -> Result:
        shutil.rmtree(trial.place, ignore_errors=True)
        trial.path.parent.mkdir(parents=True)
        _ = trial.reference  # made before the clock runs
        begun = time.monotonic()
        try:
            note = act(trial)
        except Wrong as wrong:
            return Result(False, trial.lost, time.monotonic() - begun, str(wrong))
        shutil.rmtree(trial.place, ignore_errors=True)
        return Result(True, trial.lost, time.monotonic() - begun, note, int(trial.injected))

    return Case(f"{name} ({trial.recipe}, {trial.size})", kind, run)

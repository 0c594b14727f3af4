"""Kills at chosen moments, each followed by a resume, compared bit for bit with a run that nobody
disturbed.

A case is a chain of kills of one run: each process goes on where the one before was killed. After
every kill all checkpoints are examined and compared with those of the same steps of the undisturbed
run; at the end so are reports and exhibits. Where the run comes to its end before the chain does,
it is compared, and another one begins.
"""

import contextlib
import itertools
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from campaign import faults, subjects
from campaign.children import Program, until
from campaign.subjects import SAVE_EVERY, Subject, differs, names, reports
from campaign.table import Case, Result
from quintet.engine.runs import checkpoint
from quintet.files import PARTIAL

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
STATUS = {"SIGTERM": 143, "SIGINT": 130}
KILLS, FRESH_KILLS, CHAINS = 7, 3, 4
"""Kills of a chain, of a chain of fresh processes, and chains of each kind: 1,116 in all."""
WEIGHTS = {
    "start": 2,
    "step": 1,
    "epoch": 2,
    "report": 1,
    "validation": 3,
    "exhibit": 3,
    "writing": 5,
    "retention": 3,
}
AT_MOST = 3 * SAVE_EVERY
"""Steps that a kill may cost: one checkpoint is written while another waits."""
SHORT = [
    ("mesh/autoencoder_tiny", "SIGKILL", 1, 2),
    ("mesh/autoencoder_tiny", "SIGKILL", 2, 2),
    ("mesh/autoencoder_tiny", "SIGTERM", 2, 2),
    ("music/mulan_tiny", "SIGKILL", 1, 3),
    ("music/mulan_tiny", "SIGINT", 1, 2),
]


@dataclass
class Chain:
    subject: Subject
    sort: str
    size: int
    kills: int
    seed: int
    fresh: bool
    chance: random.Random = field(init=False)
    moments: list[str] = field(default_factory=list[str])
    lost: list[int] = field(default_factory=list[int])
    recovered: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.title} {self.seed}")

    @property
    def kind(self) -> str:
        processes = "one process" if self.size == 1 else "two processes"
        return f"{self.sort}, {processes}{', fresh' if self.fresh else ''}"

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.kind}"

    @property
    def place(self) -> Path:
        return subjects.FOLDER / "kills" / re.sub(r"\W+", "-", f"{self.title}-{self.seed}")

    @property
    def path(self) -> Path:
        return self.place / "run"

    def run(self) -> Result:
        shutil.rmtree(self.place, ignore_errors=True)
        reference = self.subject.reference(self.size)
        problem = ""
        try:
            while len(self.moments) < self.kills and not problem:
                problem = self._kill(reference)
            problem = problem or self._finish(reference)
        finally:
            if not problem:
                shutil.rmtree(self.place, ignore_errors=True)
        seconds = max(self.recovered, default=0.0)
        note = problem or f"killed at {', '.join(self.moments)}"
        lost = max(self.lost, default=0)
        return Result(not problem, lost, seconds, note, max(1, len(self.moments)))

    def _start(self, hook: Any = None) -> Program:
        words = self.subject.words(self.path)
        return Program(words, self.path, self.size, hook, self.fresh and self.path.exists())

    def _finish(self, reference: Path) -> str:
        """Undisturbed to the end."""
        program = self._start()
        if program.wait(300) != [0] * self.size:
            return f"it could not go on after {self.moments}: {program.said()[-300:]}"
        return self._ended(reference)

    def _ended(self, reference: Path) -> str:
        problem = differs(self.path, reference, ended=True)
        if not problem:
            shutil.rmtree(self.path)
        return problem and f"after {self.moments}: {problem}"

    def _kill(self, reference: Path) -> str:
        moment = self._moment()
        receiver, sender = Pipe(duplex=False)
        fresh = self.fresh and self.path.exists()
        hook = None if fresh else partial(faults.tell_moments, sender)
        program = self._start(hook)
        sender.close()
        wait = _wait_by_looking if fresh else _wait_to_be_told
        came = wait(program, receiver, moment, self.chance, self.recovered)
        receiver.close()
        if not came:  # it came to its end first
            if program.wait(300) != [0] * self.size:
                return f"it ended by itself after {self.moments}: {program.said()[-300:]}"
            return self._ended(reference)
        ranks = self._victims()
        program.signal(SIGNALS[self.sort], ranks)
        self.moments.append(moment if ranks is None else f"{moment} (rank {ranks[0]})")
        return self._after(program, reference)

    def _moment(self) -> str:
        return self.chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]

    def _victims(self) -> list[int] | None:
        """Mostly all of the processes, at times one of them."""
        alone = self.size > 1 and self.chance.random() < 0.3
        return [self.chance.randrange(self.size)] if alone else None

    def _after(self, program: Program, reference: Path) -> str:
        statuses = program.wait(60)
        if not any(status is not None for status in statuses):
            return f"a process hung after {self.moments}: {program.said()[-300:]}"
        if not self.path.exists():
            return ""
        taken = max((line["step"] for line in reports(self.path)), default=0)
        kept = checkpoint.steps_in(self.path / "checkpoints")
        lost = taken - (kept[-1] if kept else 0)
        self.lost.append(lost)
        clean = statuses == [STATUS.get(self.sort)] * self.size
        if lost > (0 if clean else AT_MOST):
            return f"{lost} steps were lost after {self.moments}"
        problem = differs(self.path, reference, ended=False)
        return problem and f"after {self.moments}: {problem}"


def _wait_to_be_told(
    program: Program, wire: Any, moment: str, chance: random.Random, recovered: list[float]
) -> bool:
    """Until the program comes to the moment for the first or second time, and a little longer."""
    left, typical, began = chance.choice([1, 1, 2]), 0.02, program.began
    with contextlib.suppress(EOFError):
        while True:
            told: faults.Moment = wire.recv()
            if told.name in ("step", "epoch") and began:
                recovered.append(time.monotonic() - began)
                began = 0.0
            if told.name != moment:
                continue
            typical = told.seconds or typical
            left -= told.seconds is None or moment in ("step", "epoch")
            if left <= 0:
                span = {"start": 1.0, "validation": 0.3, "exhibit": 0.2}.get(moment, 1.5 * typical)
                time.sleep(chance.random() * span)
                return program.running
    return False


def _wait_by_looking(
    program: Program, _: Any, moment: str, chance: random.Random, recovered: list[float]
) -> bool:
    """A fresh process tells nothing: its folder is looked at."""
    path = program.path
    before = len(reports(path))
    if moment == "start":
        time.sleep(chance.random() * 8)
        return program.running
    if not until(lambda: len(reports(path)) > before, program):
        return False
    recovered.append(time.monotonic() - program.began)
    if moment in ("writing", "retention"):
        until(lambda: any(path.glob(f"checkpoints/{PARTIAL}")), program, 5)
    elif moment in ("validation", "exhibit"):
        last = len(list(path.glob("exhibits/*/*")))
        until(lambda: len(list(path.glob("exhibits/*/*"))) > last, program, 5)
    time.sleep(chance.random() * 0.05)
    return program.running


def cases(full: bool, seed: int) -> Iterator[Case]:
    if not full:
        for index, (name, sort, size, kills) in enumerate(SHORT):
            yield _case(Chain(Subject(name), sort, size, kills, seed + index, fresh=False))
        return
    for turn in (0, CHAINS, *range(1, CHAINS)):  # the fresh ones early, for short sittings
        fresh = turn == CHAINS
        kills = FRESH_KILLS if fresh else KILLS
        for name, size, sort in itertools.product(names(), (1, 2), SIGNALS):
            yield _case(Chain(Subject(name), sort, size, kills, seed + turn, fresh))


def _case(chain: Chain) -> Case:
    return Case(f"kills: {chain.title} {chain.seed}", chain.kind, chain.run)

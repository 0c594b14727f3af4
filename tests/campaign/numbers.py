"""Numbers that are none: NaN, infinity, spikes and rates that explode, in whatever a step computes
with, in any part, on any process.

A bad step must leave no trace, on all processes alike, and be named; what stays bad must end in a
sentence, or, where the run may go back, in a sound run.
"""

import functools
import itertools
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import children, subjects
from campaign.children import Program
from campaign.subjects import STEPS, Subject, names
from campaign.table import Case, Result
from campaign.trial import Wrong, require
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import read_lines

NAN, INF = float("nan"), float("inf")
SPIKE = 1e4
KEPT = ("--save-every", 1, "--keep-last", 2 * STEPS)
LIMIT = 3
"""Bad steps in a row that end a run."""
RATE = 1e8
PARTS = {
    "image/vqgan_tiny": {"vae": "optim", "discriminator": "discriminator-optim"},
    "image/autoencoder_tiny": {"vae": "optim"},
    "image/flow_few_tiny": {"transformer": "optim"},
    "image/flow_tiny": {"transformer": "optim"},
    "image/maskgit_tiny": {"transformer": "optim"},
    "mesh/autoencoder_compact_tiny": {"autoencoder": "optim"},
    "mesh/autoencoder_tiny": {"autoencoder": "optim"},
    "mesh/retopology_tiny": {"retopology": "optim"},
    "mesh/transformer_tiny": {"transformer": "optim"},
    "music/codec_tiny": {"codec": "optim"},
    "music/flow_tiny": {"transformer": "optim"},
    "music/mulan_tiny": {"mulan": "optim"},
    "speech/vocoder_tiny": {"vocoder": "optim"},
    "speech/voicebox_tiny": {"voicebox": "optim"},
    "video/autoencoder_tiny": {"tokenizer": "optim"},
    "video/continuation_tiny": {"transformer": "optim"},
    "video/flow_few_tiny": {"transformer": "optim"},
    "video/flow_tiny": {"transformer": "optim"},
    "video/maskgit_tiny": {"transformer": "optim"},
    "video/tokenizer_tiny": {
        "tokenizer": "optim",
        "frame_discriminator": "discriminator-optim",
        "motion_discriminator": "discriminator-optim",
    },
}
"""The parts that learn, and the setting that says how; the first is in every step."""
FRACTIONS = {
    "mesh/autoencoder_tiny": (NAN,),  # infinity is cut to the last bin
    "music/mulan_tiny": (NAN, INF),
    "speech/voicebox_tiny": (NAN, INF),
}
"""Recipes whose data can be no number: pictures are whole numbers until they are on the device."""


@dataclass(frozen=True)
class Fault:
    """A bad value at one step, or from one step on."""

    where: str
    """data, loss, gradient or weights."""
    value: float
    part: str
    step: int
    rank: int = -1
    """The process that it befalls; -1 for all."""


def inject(fault: Fault) -> None:
    """In a child, before the program begins: every task that is built has the fault in it."""
    from quintet import rooms

    if fault.where == "data":
        _spoil_at_the_door(fault)
        return
    build = rooms.build

    def built(*given: Any, **named: Any) -> Any:
        task = build(*given, **named)
        wrap = functools.partial(_faulty, fault, task)
        task.updates = [type(u)(u.part, wrap(u), u.when) for u in task.updates]
        return task

    rooms.build = built


def _spoil_at_the_door(fault: Fault) -> None:
    """Batches are bad as they come from the loader, before the engine looks at them."""
    from quintet.engine.run import Run

    begin = Run.begin

    def begun(run: Any, batches: Any) -> Any:
        if run.step == fault.step and fault.rank in (-1, run.world.rank):
            for batch in batches:
                _spoil(batch.data, fault.value)
        return begin(run, batches)

    Run.begin = begun  # type: ignore[assignment]


def _faulty(fault: Fault, task: Any, update: Any) -> Callable[..., Any]:
    done: list[int] = []

    def losses(nets: Any, batches: Any, at: Any) -> Iterator[Any]:
        here = at.step == fault.step and fault.rank in (-1, at.world.rank) and not done
        mine = here and update.part == fault.part
        handles: list[Any] = []
        if mine and fault.where in ("gradient", "weights"):
            parameters = [p for p in task.parts[fault.part].network.parameters() if p.requires_grad]
            chosen = random.Random(fault.step).choice(parameters)
            if fault.where == "weights":
                done.append(at.step)  # lost once; a run that went back has them again
                chosen.data.view(-1)[0] = fault.value
            else:
                handles.append(chosen.register_hook(lambda gradient: gradient * fault.value))
        try:
            for loss, metrics in update.losses(nets, batches, at):
                yield (loss * fault.value if mine and fault.where == "loss" else loss), metrics
        finally:  # the engine leaves a generator at its last yield
            for handle in handles:
                handle.remove()

    return losses


def _spoil(data: Any, value: float) -> None:
    """Some numbers of every tensor of a batch that holds fractions."""
    for tensor in data.values():
        if getattr(tensor, "is_floating_point", bool)():
            tensor.view(-1)[: max(1, tensor.numel() // 7)] = value


class Everywhere(Program):
    """A command whose every process has the hook, and may have workers of its own."""

    def __init__(
        self, words: Sequence[str], path: Path, size: int, hook: Callable[[], Any] | None = None
    ):
        super().__init__(words, path, 0)
        port = children.free_port()
        for rank in range(size):
            arguments = (words, rank, size, port, self.log, hook)
            child = children._context.Process(target=children._child, args=arguments)
            child.start()
            self.children.append(child)


@dataclass
class Attempt:
    """One run with a fault in it."""

    recipe: str
    size: int
    fault: Fault

    @property
    def title(self) -> str:
        f = self.fault
        where = f"{f.where} of {f.part}" if f.where != "data" else "data"
        rank = "" if f.rank < 0 else f" of process {f.rank}"
        return f"{f.value} in {where}{rank} at step {f.step} ({self.recipe}, {self.size})"

    @property
    def path(self) -> Path:
        return subjects.FOLDER / "numbers" / re.sub(r"\W+", "-", self.title) / "run"

    def run(self, *more: object) -> Program:
        shutil.rmtree(self.path.parent, ignore_errors=True)
        words = Subject(self.recipe).words(self.path, *KEPT, *more)
        return Everywhere(words, self.path, self.size, functools.partial(inject, self.fault))

    def said(self, word: str) -> list[str]:
        events = read_lines(self.path / "events.jsonl")
        return [event["message"] for event in events if word in event["message"]]

    def files(self, step: int) -> dict[str, str]:
        """Digests of what the part holds before it takes this step."""
        page = checkpoint.read_about(checkpoint.path_of(self.path / "checkpoints", step))
        part = self.fault.part
        return {n: f["sha256"] for n, f in page["files"].items() if n.startswith(f"{part}.")}

    def finite(self, step: int) -> None:
        from safetensors.torch import load_file

        for file in checkpoint.path_of(self.path / "checkpoints", step).glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                bad = tensor.is_floating_point() and not tensor.isfinite().all()
                require(not bad, f"{file.name}: {name} is not finite at step {step}")


def ends(program: Program, status: int) -> None:
    statuses = program.wait(300)
    wanted = [status] * len(program.children)
    require(statuses == wanted, f"statuses {statuses}: {program.said()[-600:]}")
    require("Traceback" not in program.said(), f"a traceback: {program.said()[-600:]}")


def passes(attempt: Attempt) -> str:
    """A bad step is skipped on all processes, named, and leaves no trace of itself."""
    ends(attempt.run(), 0)
    step, part = attempt.fault.step, attempt.fault.part
    named = attempt.said(f"skipped the update of '{part}' at step {step + 1}: not finite")
    require(named, f"nobody named it: {attempt.said('')}")
    require(attempt.files(step) == attempt.files(step + 1), "the bad step left a trace")
    attempt.finite(STEPS)
    return named[0][:120]


def held(attempt: Attempt) -> str:
    """A spike is clipped: the run comes to its end with finite numbers, and nothing is skipped."""
    ends(attempt.run(), 0)
    require(not attempt.said("skipped the update"), "a finite spike was skipped")
    attempt.finite(STEPS)
    return "it was clipped"


def refused(attempt: Attempt) -> str:
    """What stays bad ends in a sentence on all processes; the last intact checkpoint is intact."""
    program = attempt.run("--max-skipped", LIMIT)
    ends(program, 2)
    require(f"{LIMIT} updates of" in program.said(), f"no sentence: {program.said()[-400:]}")
    found = re.search(r"last intact checkpoint is at step (\d+)", program.said())
    require(found, "it does not say where the last intact checkpoint is")
    assert found is not None
    require(int(found[1]) <= attempt.fault.step, f"it trusts the checkpoint of step {found[1]}")
    attempt.finite(int(found[1]))
    return program.sentence()[:120]


def taken_back(attempt: Attempt) -> str:
    """Where it may go back it does, once, and comes to a sound end."""
    ends(attempt.run("--max-skipped", LIMIT, "--rollback", 1), 0)
    named = attempt.said("rolled back from step")
    require(len(named) == 1, f"it rolled back {len(named)} times")
    attempt.finite(STEPS)
    return named[0][:120]


def exploded(attempt: Attempt) -> str:
    """A rate that nothing survives: a sentence, or finite numbers to the end."""
    setting = PARTS[attempt.recipe][attempt.fault.part]
    program = attempt.run("--max-skipped", LIMIT, f"--{setting}.learning-rate", RATE)
    statuses = program.wait(300)
    require(len(set(statuses)) == 1, f"processes differ: {statuses}")
    require("Traceback" not in program.said(), f"a traceback: {program.said()[-600:]}")
    if statuses[0] == 0:
        return "it came to its end"
    require(statuses[0] == 2 and "not finite" in program.said(), program.said()[-400:])
    return program.sentence()[:120]


JUDGES: dict[str, Callable[[Attempt], str]] = {
    "bad numbers in one step": passes,
    "spikes": held,
    "weights lost": refused,
    "weights lost, with rollback": taken_back,
    "rates that explode": exploded,
}


def case(kind: str, attempt: Attempt) -> Case:
    def run() -> Result:
        begun = time.monotonic()
        try:
            note = JUDGES[kind](attempt)
        except Wrong as wrong:
            return Result(False, 0, time.monotonic() - begun, str(wrong))
        shutil.rmtree(attempt.path.parent, ignore_errors=True)
        return Result(True, 0, time.monotonic() - begun, note)

    return Case(f"{kind}: {attempt.title}", kind, run)


def attempts(name: str, size: int, chance: random.Random) -> Iterator[tuple[str, Attempt]]:
    for part in PARTS[name]:
        first = STEPS // 2 if "discriminator" in part else 0
        step = lambda: chance.randint(first + 1, STEPS - 2)  # noqa: B023
        rank = lambda: chance.randrange(size) if size > 1 else -1
        for where, value in itertools.product(("loss", "gradient"), (NAN, INF)):
            yield "bad numbers in one step", _of(name, size, where, value, part, step(), rank())
        yield "spikes", _of(name, size, "loss", SPIKE, part, step(), rank())
        early = min(first + 2, STEPS - LIMIT - 2)
        yield "weights lost", _of(name, size, "weights", NAN, part, early, rank())
        yield "weights lost, with rollback", _of(name, size, "weights", INF, part, early, rank())
        yield "rates that explode", _of(name, size, "none", RATE, part, first)
    for value in FRACTIONS.get(name, ()):
        main = next(iter(PARTS[name]))
        yield "bad numbers in one step", _of(name, size, "data", value, main, step(), rank())


def _of(name: str, size: int, *fault: Any) -> Attempt:
    return Attempt(name, size, Fault(*fault))


SHORT = [
    ("bad numbers in one step", Attempt("image/vqgan_tiny", 1, Fault("gradient", NAN, "vae", 3))),
    ("bad numbers in one step", Attempt("image/vqgan_tiny", 2, Fault("loss", INF, "vae", 3, 1))),
    ("bad numbers in one step", Attempt("music/mulan_tiny", 1, Fault("data", NAN, "mulan", 4))),
    ("weights lost", Attempt("speech/voicebox_tiny", 1, Fault("weights", NAN, "voicebox", 3))),
    (
        "weights lost, with rollback",
        Attempt("image/vqgan_tiny", 2, Fault("weights", INF, "vae", 3, 0)),
    ),
]


def cases(full: bool, seed: int) -> Iterator[Case]:
    """Each judged case of every recipe, on one process and on two; or a handful."""
    if not full:
        yield from (case(kind, attempt) for kind, attempt in SHORT)
        return
    for name, size in itertools.product(names(), (1, 2)):
        chance = random.Random(f"{name} {size} {seed}")
        for kind, attempt in attempts(name, size, chance):
            yield case(kind, attempt)

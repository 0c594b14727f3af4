"""Clocks that jump, processes that sleep, and a run that is resumed two hundred times."""

import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from campaign import faults
from campaign.children import Program
from campaign.subjects import Subject, digests, names, reports
from campaign.table import Case
from campaign.trial import Trial, case, require
from quintet.engine.runs.folder import read_lines

YEAR = 365 * 86_400.0
RESUMES, SHORT_RESUMES = 200, 5
BULK = "mesh/autoencoder_tiny"


def jumping(trial: Trial, seed: int) -> str:
    trial.ends_alike(trial.start(partial(faults.jumping_clock, seed, 40 * YEAR)))
    return "the time of day jumped by up to forty years at every look"


def leaping(trial: Trial, seed: int) -> str:
    program = trial.start(partial(faults.leaping_clock, seed, 7 * 86_400.0), "--minutes", 1e9)
    trial.ends_alike(program)
    spent = [
        line["seconds"] for line in read_lines(trial.path / "metrics.jsonl") if "seconds" in line
    ]
    require(spent == sorted(spent), f"its seconds went back: {spent}")
    return "all clocks leapt ahead by up to a week"


def set_back(trial: Trial, step: int) -> str:
    """Killed, and gone on with on a machine whose clock is ten years behind."""
    program = trial.start(partial(faults.shifted_clock, 0.0))
    trial.reach(program, step)
    program.signal(signal.SIGKILL)
    program.wait()
    trial.lost = trial.taken - trial.kept
    trial.ends_alike(trial.start(partial(faults.shifted_clock, -10 * YEAR)))
    return f"killed at step {step}, gone on with ten years earlier"


def asleep(trial: Trial, seed: int, naps: int, seconds: float) -> str:
    """Stopped and continued, all processes or one of them, wherever they are."""
    chance = random.Random(seed)
    program = trial.start(partial(faults.slow_disk, 0.02))
    slept = 0
    while program.running and slept < naps:
        time.sleep(chance.random() * 0.4)
        ranks = chance.choice([None, [0], [trial.size - 1]])
        program.signal(signal.SIGSTOP, ranks)
        time.sleep(seconds)
        program.signal(signal.SIGCONT, ranks)
        slept += 1
    trial.ends_alike(program)
    return f"stopped and continued {slept} times for {seconds} s"


def out_of_time(trial: Trial) -> str:
    """--minutes with a clock that leaps: a clean stop after each step, and nothing lost."""
    sittings = 0
    while trial.taken < 10:
        hook = partial(faults.leaping_clock, sittings, 7 * 86_400.0)
        program = trial.start(hook, "--minutes", 0.001)
        statuses = program.wait()
        require(set(statuses) == {0}, f"statuses {statuses}: {program.said()[-300:]}")
        require(trial.taken == trial.kept, f"step {trial.taken} was taken, {trial.kept} was kept")
        sittings += 1
        require(sittings <= 20, "it never came to its end")
    trial.ends_alike()
    return f"{sittings} sittings"


def resumed(trial: Trial, times: int) -> str:
    """One step in each process; bit for bit the run that went through at once."""
    steps = ("--steps", times, "--schedule-steps", times, "--save-every", 1, "--evaluate-every", 5)
    straight = trial.place / "straight"
    words = Subject(trial.recipe).words
    require(Program(words(straight, *steps), straight).wait(600) == [0], "the straight run failed")
    largest = 0
    for sitting in range(1, times + 1):
        program = Program(words(trial.path, *steps, "--minutes", 1e-9), trial.path)
        (status,) = program.wait()
        require(status == 0, f"sitting {sitting}: status {status}: {program.said()[-300:]}")
        require(trial.kept == sitting, f"sitting {sitting} ended at step {trial.kept}")
        largest = max(largest, _state_of(trial.path))
    last = str(times)
    require(digests(trial.path)[last] == digests(straight)[last], "it ended otherwise")
    require(reports(trial.path) == reports(straight), "its reports are others")
    bound = 1.05 * _state_of(straight) + 200 * times
    require(largest <= bound, f"its folder came to {largest:,} bytes, the straight one's {bound:,}")
    return f"{times} processes of one step; the folder held {largest:,} bytes at most"


def _state_of(path: Path) -> int:
    """Bytes of a run without the page and the exhibits, which both runs have alike."""
    files = [file for file in path.rglob("*") if file.is_file() and "exhibits" not in file.parts]
    return sum(file.stat().st_size for file in files if file.name != "report.html")


def cases(full: bool, seed: int) -> Iterator[Case]:
    for recipe, size in itertools.product(names(), (1, 2)) if full else [(BULK, 1)]:
        plan: dict[str, Callable[[Trial], str]] = {
            "a clock that leaps": partial(leaping, seed=seed),
            "a machine asleep": partial(asleep, seed=seed, naps=6 if full else 3, seconds=0.7),
        }
        if full:
            plan["a clock that jumps"] = partial(jumping, seed=seed)
            plan["a clock set back"] = partial(set_back, step=3)
            plan["out of time"] = out_of_time
        for title, act in plan.items():
            name = f"clock: {title}"
            yield case("time", name, Trial(f"{name} {recipe} {size}", recipe, size), act)
    times = RESUMES if full else SHORT_RESUMES
    name = f"clock: resumed {times} times"
    yield case("resumed again and again", name, Trial(name, BULK), partial(resumed, times=times))

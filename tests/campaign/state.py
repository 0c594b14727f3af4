"""Files of state that are damaged, swapped or forged, and settings and reports that are hostile.

The subject is a run of ten steps that stands at step six, with a checkpoint of step four behind it.
After each change a command of the real program reads the folder. It must refuse with a sentence and
status 2, or go on and end as the undisturbed run, bit for bit; where it went on in spite of a bad
checkpoint, it must have named it. No trap may have sprung.
"""

import itertools
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from campaign import subjects
from campaign.children import Program
from campaign.damage import (
    another_recipe,
    another_version,
    bare_page,
    cut,
    flip,
    flip_config,
    grown,
    missing,
    page,
    renamed,
    swap,
    swap_checkpoint,
    swap_config,
    swap_steps,
    tensors,
    trap,
)
from campaign.forgery import BULK, Forger
from campaign.hostile import (
    RAW,
    SETTINGS,
    broken_report,
    hostile_best,
    hostile_report,
    raw,
    setting,
)
from campaign.subjects import differs, names
from campaign.table import Case, Result
from campaign.trial import Wrong, require

FLIPS, CUTS = 60, 30
"""Of each the full campaign makes so many in the bulk, and a sixth of that in the other five."""
MEMORY = 12 << 30
"""Bytes that a child may ask for, so that an absurd size cannot take the machine down."""

Change = Callable[[Forger, random.Random], str]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


# -- the judgement --------------------------------------------------------------------------------


def judged(
    name: str, title: str, command: str, change: Change, seed: int, loud: bool, exact: bool
) -> Result:
    """`loud`: whoever goes on must have named the damage. `exact`: reports must be alike, too."""
    place = subjects.FOLDER / "state"
    shutil.rmtree(place, ignore_errors=True)
    forger = Forger(name, place / "run")
    what = change(forger, random.Random(f"{name} {title} {seed}"))
    words = [command, str(forger.path), *(["--steps", "10"] if command == "resume" else [])]
    begun = time.monotonic()
    program = Program(words, place / "log", hook=limited)
    (status,) = program.wait(180)
    spent = time.monotonic() - begun
    try:
        note = _verdict(forger, program, status, loud, exact, command == "resume")
    except Wrong as wrong:
        return Result(False, None, spent, f"{what}, {command}: {wrong}")
    shutil.rmtree(place, ignore_errors=True)
    return Result(True, None, spent, f"{what}, {command}: {note}")


def _verdict(
    forger: Forger, program: Program, status: int | None, loud: bool, exact: bool, resumed: bool
) -> str:
    said = program.said()
    require(not forger.mark.exists(), "A TRAP SPRANG")
    require("\x1b" not in said, "control characters reached the terminal")
    require("Traceback" not in said, f"a traceback: {said[-300:]}")
    page = forger.path / "report.html"
    if page.exists():
        text = page.read_text(encoding="utf-8", errors="replace")
        require("<script>alert" not in text, "a script stands in the report")
    if status != 0:
        refusal = program.sentence()
        require(status == 2 and refusal, f"status {status}: {said[-300:]}")
        return refusal.removeprefix("quintet: ")[:160]
    require(not loud or "damaged" in said, "it went on and said nothing")
    if not resumed:
        return "answered, and no trap sprang"
    problem = differs(forger.path, forger.reference, ended=exact)
    require(not problem, f"it went on and {problem}")
    return (
        "passed over, and ended as the undisturbed run" if loud else "ended as the undisturbed run"
    )


# -- the campaign ---------------------------------------------------------------------------------

DAMAGE: dict[str, list[Change]] = {
    "bit flips": [flip],
    "truncation": [cut],
    "files missing, longer or under another name": [missing, grown, renamed],
    "files swapped": [swap, swap_steps],
}
FORGED: dict[str, list[Change]] = {
    "files swapped": [swap_checkpoint, swap_config],
    "checkpoints of another recipe or version": [another_recipe, another_version],
    "forged pages of state": [page, bare_page],
    "tensors extra, missing, of other shapes or types": [tensors],
    "traps in place of tensors": [trap],
}
TOLD: dict[str, list[Change]] = {
    "reports and best.json": [hostile_report, broken_report, hostile_best]
}
READERS = ("resume", "report", "doctor", "evaluate")
SETTING, REPORT = "bad configurations", "reports and best.json"


def _case(
    kind: str, title: str, name: str, command: str, change: Change, seed: int, **how: bool
) -> Case:
    flags = {"loud": False, "exact": True} | how
    run = partial(judged, name, title, command, change, seed, **flags)
    return Case(f"state: {kind}, {title} ({name}, {command}, {seed})", kind, run)


def _damage(name: str, times: dict[str, int], seed: int) -> Iterator[Case]:
    for kind, changes in DAMAGE.items():
        for turn in range(times.get(kind, 2)):
            change = changes[turn % len(changes)]
            title = change.__name__
            yield _case(
                kind, title, name, "resume", change, seed + turn, loud=change is not renamed
            )


def _forged(name: str, turns: int, seed: int) -> Iterator[Case]:
    for kind, changes in FORGED.items():
        for change in changes:
            alone = change in (swap_checkpoint, swap_config, another_recipe, another_version)
            for turn in range(1 if alone else turns):
                yield _case(kind, change.__name__, name, "resume", change, seed + turn)


def _settings(
    chosen: list[tuple[str, Any]], seed: int, commands: tuple[str, ...] = ("resume",)
) -> Iterator[Case]:
    for (field, value), command in itertools.product(chosen, commands):
        title = f"{field} {str(value)[:30]!r}"
        change = partial(setting, field=field, value=value)
        yield _case(SETTING, title, BULK, command, change, seed)


def _raw(hows: list[str], seed: int) -> Iterator[Case]:
    for how in hows:
        for command in ("resume", "doctor", "report"):
            change = partial(raw, file="config.json", how=how)
            yield _case(SETTING, f"config.json {how}", BULK, command, change, seed)


def _reports(turns: int, seed: int) -> Iterator[Case]:
    for turn in range(turns):
        change = TOLD[REPORT][turn % 3]
        command = READERS[turn // 3 % len(READERS)]
        yield _case(REPORT, change.__name__, BULK, command, change, seed + turn, exact=False)


def cases(full: bool, seed: int) -> Iterator[Case]:
    if not full:
        yield from _damage(
            BULK, {"bit flips": 2, "truncation": 1, **dict.fromkeys(DAMAGE, 1)}, seed
        )
        yield from _forged(BULK, 1, seed)
        yield from _settings(SETTINGS[::12], seed)
        yield from _reports(3, seed)
        return
    yield from _damage(BULK, {"bit flips": FLIPS, "truncation": CUTS}, seed)
    yield from _forged(BULK, 12, seed)
    yield from _settings(SETTINGS, seed, READERS)
    yield from _raw(sorted(RAW), seed)
    for turn in range(FLIPS):
        yield _case(SETTING, "a bit flipped", BULK, "resume", flip_config, seed + turn)
    yield from _reports(FLIPS, seed)
    for name in names():
        if name != BULK:
            times = {"bit flips": FLIPS // 6, "truncation": CUTS // 6}
            yield from _damage(name, times, seed)
            yield from _forged(name, 2, seed)

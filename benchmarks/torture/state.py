"""Files of state that are damaged, swapped or forged, and settings and reports that are hostile.

The subject is a run of ten steps that stands at step six, with a checkpoint of step four behind it.
After each change a command of the real program reads the folder. It must refuse with a sentence and
status 2, or go on and end as the undisturbed run, bit for bit; where it went on in spite of a bad
checkpoint, it must have named it. No trap may have sprung.
"""

import itertools
import json
import pickle
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from benchmarks.torture import subjects
from benchmarks.torture.children import Program
from benchmarks.torture.forgery import Forger
from benchmarks.torture.subjects import Subject, differs, names
from benchmarks.torture.table import Case, Result
from benchmarks.torture.trial import Wrong, require
from safetensors.torch import load_file

BULK = "mesh/autoencoder_tiny"
"""The smallest; most changes are made to it."""
FLIPS, CUTS = 60, 30
"""Of each the full campaign makes so many in the bulk, and a sixth of that in the other five."""
MEMORY = 12 << 30
"""Bytes that a child may ask for, so that an absurd size cannot take the machine down."""
HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e"

Change = Callable[[Forger, random.Random], str]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


# -- damage ---------------------------------------------------------------------------------------


def flip(forger: Forger, chance: random.Random) -> str:
    """One bit of one file of a checkpoint."""
    file = chance.choice(forger.checkpoint_files())
    content = bytearray(file.read_bytes())
    at = chance.randrange(8 * len(content))
    content[at // 8] ^= 1 << at % 8
    file.write_bytes(content)
    return f"bit {at} of {file.name}"


def cut(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(forger.checkpoint_files())
    size = chance.choice([0, 1, 7, chance.randrange(file.stat().st_size)])
    file.write_bytes(file.read_bytes()[:size])
    return f"{file.name} cut to {size} bytes"


def flip_config(forger: Forger, chance: random.Random) -> str:
    content = bytearray((forger.path / "config.json").read_bytes())
    at = chance.randrange(8 * len(content))
    content[at // 8] ^= 1 << at % 8
    (forger.path / "config.json").write_bytes(content)
    return f"bit {at} of config.json"


def missing(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(forger.checkpoint_files())
    file.unlink()
    return f"{file.name} removed"


def grown(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(forger.checkpoint_files())
    file.write_bytes(file.read_bytes() + bytes(chance.randrange(1, 64)))
    return f"{file.name} made longer"


def renamed(forger: Forger, _: random.Random) -> str:
    """The older checkpoint under a newer one's name."""
    shutil.rmtree(forger.newest)
    forger.older.rename(forger.newest)
    return "step 4 under the name of step 6, and no other"


# -- swaps ----------------------------------------------------------------------------------------


def swap(forger: Forger, chance: random.Random) -> str:
    """A file of the same name and step out of a run with another number of processes."""
    file = chance.choice(forger.checkpoint_files())
    shutil.copy(forger.other / "checkpoints" / forger.newest.name / file.name, file)
    return f"{file.name} of another run"


def swap_checkpoint(forger: Forger, _: random.Random) -> str:
    for mine in (forger.older, forger.newest):
        shutil.rmtree(mine)
        shutil.copytree(forger.other / "checkpoints" / mine.name, mine)
    return "both checkpoints of another run"


def swap_config(forger: Forger, _: random.Random) -> str:
    shutil.copy(forger.other / "config.json", forger.path / "config.json")
    return "config.json of another run"


def swap_steps(forger: Forger, chance: random.Random) -> str:
    """A file of the older checkpoint in the newer one."""
    files = [file for file in forger.checkpoint_files() if file.suffix == ".safetensors"]
    file = chance.choice(files)
    shutil.copy(forger.older / file.name, file)
    return f"{file.name} of step 4 in step 6"


def another_recipe(forger: Forger, _: random.Random) -> str:
    """Checkpoints of another recipe, with this run's id and a seal."""
    foreign = Subject("music/mulan_tiny" if "mesh" in forger.name else BULK).reference(1)
    for mine in (forger.older, forger.newest):
        shutil.rmtree(mine)
        shutil.copytree(foreign / "checkpoints" / mine.name, mine)
        forger.reseal(mine, {"run": forger.id})
    return "checkpoints of another recipe, sealed"


# -- forgeries, with digests and seals that vouch for them ----------------------------------------


def another_version(forger: Forger, _: random.Random) -> str:
    for mine in (forger.older, forger.newest):
        forger.reseal(mine, {"versions": {"quintet": "99.0", "torch": "0.1", "python": "2.7"}})
    return "written by version 99.0"


def page(forger: Forger, chance: random.Random) -> str:
    """A page of state with an absurd value."""
    name = chance.choice(["step", "samples", "seconds", "run", "seed", "files"])
    odd: list[Any] = [None, "x", -5, 1e300, [], {}, True, 2.5, "os.system"]
    value = chance.choice(odd)
    for mine in (forger.older, forger.newest):
        forger.reseal(mine, {name: value})
    return f"{name} is {value!r} in state.json, sealed"


def bare_page(forger: Forger, chance: random.Random) -> str:
    name = chance.choice(["step", "samples", "seconds", "run", "seed", "files"])
    for mine in (forger.older, forger.newest):
        forger.reseal(mine, without=name)
    return f"state.json lacks {name}, sealed"


def tensors(forger: Forger, chance: random.Random) -> str:
    """A tensor too many, too few, of another shape or of another type, in both checkpoints."""
    how = chance.choice(["extra", "missing", "shape", "flat", "half", "double", "integer"])
    stored = [f for f in forger.checkpoint_files() if f.suffix == ".safetensors"]
    files = [f.name for f in stored if _sized(load_file(f))]
    file, pick = chance.choice(files), chance.random()
    for mine in (forger.older, forger.newest):
        forger.rewrite(mine / file, partial(_altered, how=how, pick=pick))
        forger.reseal(mine)
    return f"{how} in {file}, sealed"


def _sized(held: dict[str, torch.Tensor]) -> list[str]:
    return sorted(n for n, t in held.items() if t.is_floating_point() and t.ndim and t.numel() > 1)


def _altered(held: dict[str, torch.Tensor], how: str, pick: float) -> dict[str, torch.Tensor]:
    sized = _sized(held)
    if not sized:  # the moments of a part that has not begun
        return held
    name = sized[int(pick * len(sized))]
    old = held[name]
    if how == "missing":
        return {n: t for n, t in held.items() if n != name}
    if how == "extra":
        return {**held, f"{name}.more": old}
    changed = {
        "shape": torch.zeros(*old.shape[:-1], old.shape[-1] + 1),
        "flat": old.reshape(-1, 1),
        "half": old.half(),
        "double": old.double(),
        "integer": old.long(),
    }
    return {**held, name: changed[how]}


def trap(forger: Forger, chance: random.Random) -> str:
    """A pickle that would leave a mark, in place of tensors and beside them, vouched for."""
    sprung = pickle.dumps(forger.trap())
    files = [f.name for f in forger.checkpoint_files() if f.suffix == ".safetensors"]
    file = chance.choice(files)
    for mine in (forger.older, forger.newest):
        (mine / file).write_bytes(sprung)
        (mine / "optimizer.pt").write_bytes(sprung)
        forger.reseal(mine)
    return f"a pickle as {file}, sealed"


# -- settings -------------------------------------------------------------------------------------

SETTINGS: list[tuple[str, Any]] = [
    ("settings.unheard_of", 1),
    ("settings.model.unheard_of", "x"),
    ("settings.steps", "ten"),
    ("settings.steps", True),
    ("settings.steps", 2.5),
    ("settings.steps", -1),
    ("settings.batch_size", 10**12),
    ("settings.batch_size", 0),
    ("settings.accumulate", 10**9),
    ("settings.seed", 7),
    ("settings.seed", "0"),
    ("settings.workers", -1),
    ("settings.keep_last", 0),
    ("settings.log_every", None),
    ("settings.minutes", -1),
    ("settings.precision", "fp16"),
    ("settings.precision", "bf16"),
    ("settings.device", "tpu"),
    ("settings.model", []),
    ("settings.model", None),
    ("settings.model.dim", 10**12),
    ("settings.model.dim", 10**7),
    ("settings.model.dim", 0),
    ("settings.model.dim", "os.system"),
    ("settings.model.levels", "abc"),
    ("settings.model.levels", [10**9, 10**9]),
    ("settings.autoencoder.rate", 0.5),
    ("settings.autoencoder.rate", 1e999),
    ("settings.autoencoder.name", "sgd"),
    ("settings.autoencoder.betas", [0.9]),
    ("settings.autoencoder.warmup", 3),
    ("settings.meshes.builtin_count", 10**15),
    ("settings.meshes.builtin_count", 64),
    ("settings.meshes.max_faces", 10**15),
    ("settings.data", "/nowhere/at/all"),
    ("settings.data", "python:os.system"),
    ("settings.trackers", ["os"]),
    ("settings.trackers", ["__import__('os')"]),
    ("settings", None),
    ("settings", "rm -rf"),
    ("recipe", "os/system"),
    ("recipe", "../mesh/autoencoder_tiny"),
    ("recipe", "mesh/__import__"),
    ("recipe", "image/vqgan_tiny"),
    ("recipe", ["mesh/autoencoder_tiny"]),
    ("recipe", None),
    ("global_batch", 4),
    ("global_batch", 10**18),
    ("global_batch", "2"),
    ("id", "somebody else's"),
    ("id", None),
    ("id", ["x"]),
    ("frozen", {"../../x": "abc"}),
    ("frozen", "x"),
    ("quintet", "99.0"),
    ("machine", HOSTILE),
]
"""Made in the configuration of the bulk's run; the list is of its fields."""


def setting(forger: Forger, _: random.Random, field: str, value: Any) -> str:
    about = forger.config()
    place = about
    *path, last = field.split(".")
    for name in path:
        place = place[name]
    place[last] = value
    (forger.path / "config.json").write_text(json.dumps(about), encoding="utf-8")
    return f"{field} is {value!r}"


RAW = {
    "empty": b"",
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "a list": b"[]",
    "NaN": b'{"settings": NaN}',
    "a long number": b'{"id": ' + b"9" * 10_000 + b"}",
    "lone surrogate": b'{"id": "\\ud800"}',
    "nothing at all": b"\n\n",
}


def raw(forger: Forger, _: random.Random, file: str, how: str) -> str:
    (forger.path / file).write_bytes(RAW[how])
    return f"{file} is {how}"


# -- reports --------------------------------------------------------------------------------------

LINES: list[Any] = [
    {"step": "six", "loss": 1.0},
    {"step": None},
    {"step": [6]},
    {"step": 1e300},
    {"step": 3, HOSTILE: 1.0},
    {"step": 3, "autoencoder/loss": HOSTILE},
    {"step": 3, "message": HOSTILE},
    {"step": 3, "message": {"a": [HOSTILE]}},
    {"message": 5},
    "x",
    None,
    [1],
]


def hostile_report(forger: Forger, chance: random.Random) -> str:
    file, line = chance.choice(["metrics.jsonl", "events.jsonl"]), chance.choice(LINES)
    forger.insert(file, json.dumps(line), chance)
    return f"{json.dumps(line)[:60]} in {file}"


def broken_report(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(["metrics.jsonl", "events.jsonl"])
    how = chance.choice(sorted(RAW))
    forger.insert(file, RAW[how].decode("latin-1"), chance)
    return f"a line of {file} is {how}"


def hostile_best(forger: Forger, chance: random.Random) -> str:
    odd: list[Any] = [None, "x", [], {}, {"step": "../.."}, {"step": 10**30, "value": 1}]
    odd += [{"step": 6}, {"step": None, "value": None}, {"step": 4, "value": "x"}, [6]]
    value = chance.choice(odd)
    (forger.path / "best.json").write_text(json.dumps(value), encoding="utf-8")
    return f"best.json is {value!r}"


# -- the judgement --------------------------------------------------------------------------------


def judged(
    name: str, title: str, command: str, change: Change, seed: int, loud: bool, exact: bool
) -> Result:
    """`loud`: whoever goes on must have named the damage. `exact`: reports must be alike, too."""
    place = subjects.PLACE / "state"
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

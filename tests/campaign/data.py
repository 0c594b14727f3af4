"""Damaged data: mutations of sound files of every kind, read as a run reads them; and workers that
die or hang while they read.

A file must be read or be refused by name with a reason, within a time limit and a cap on memory;
anything else, another exception, a crash, a hang, is a failure of the program.
"""

import functools
import os
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from campaign import seeds, subjects
from campaign.children import Program, until
from campaign.numbers import Everywhere
from campaign.subjects import Subject, differs
from campaign.table import Case, Result
from campaign.trial import Wrong, require
from quintet.engine.runs.folder import read_lines

BATCH = 100
"""Mutated files of a case."""
SECONDS = 10.0
"""That reading one sample may take."""
MEMORY = 1 << 31
"""Bytes of addresses that reading may add to those of the program."""
FILES = {
    "images": 3000,
    "clips": 2000,
    "sounds": 2000,
    "speech": 1000,
    "meshes": 3000,
    "metadata": 1000,
    "shards": 1000,
}
"""Mutated files of the full campaign."""
SHORT = 12
"""Those of the short one, of each kind."""
RECIPES = {
    "images": "image/vqgan_tiny",
    "clips": "video/tokenizer_tiny",
    "sounds": "music/mulan_tiny",
    "speech": "speech/voicebox_tiny",
    "meshes": "mesh/autoencoder_tiny",
    "metadata": "image/vqgan_tiny",
    "shards": "image/vqgan_tiny",
}
SETTINGS = {
    "images": "images",
    "clips": "videos",
    "sounds": "sounds",
    "speech": "recordings",
    "meshes": "meshes",
}
ALONE = ("metadata", "shards")
"""Kinds of which one bad file concerns its whole folder, which is then made for it alone."""
TEXT = "a plain tone for a while"
LARGE = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80")
DIGITS = re.compile(rb"\d+")


# -- mutations ------------------------------------------------------------------------------


def flipped(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def scribbled(content: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(content))
    count = chance.choice((1, 4, 16, 256))
    content[begin : begin + count] = chance.randbytes(count)


def emptied(content: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(content))
    count = min(chance.choice((4, 64, 1024)), len(content) - begin)
    content[begin : begin + count] = bytes(count)


def cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def dropped(content: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(content))
    del content[begin : begin + chance.choice((1, 7, 100))]


def repeated(content: bytearray, chance: random.Random) -> None:
    begin = chance.randrange(len(content))
    piece = content[begin : begin + chance.choice((1, 16, 512))]
    content[begin:begin] = piece * chance.choice((1, 3, 200))


def enlarged(content: bytearray, chance: random.Random) -> None:
    """A number somewhere, most likely in the header, becomes one of the largest."""
    begin = chance.randrange(min(len(content), chance.choice((32, 128, 1 << 20))))
    content[begin : begin + 4] = chance.choice(LARGE)


def renumbered(content: bytearray, chance: random.Random) -> None:
    """A number in a text becomes another."""
    found = list(DIGITS.finditer(content))
    if not found:
        return enlarged(content, chance)
    at = chance.choice(found)
    content[at.start() : at.end()] = chance.choice(
        (b"0", b"-1", b"99999999999999999999", b"1e309", b"nan", b"4294967295", b"2000000000")
    )
    return None


MUTATIONS = (flipped, scribbled, emptied, cut, dropped, repeated, enlarged, renumbered)


def mutated(content: bytes, chance: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if made:
            chance.choice(MUTATIONS)(made, chance)
    return bytes(made)


def prepare(kind: str, place: Path, count: int, chance: random.Random) -> list[Path]:
    """Folders with so many mutated files in all."""
    sound = place / "sound"
    sound.mkdir(parents=True)
    seeds.MAKERS[kind](sound)
    files = sorted(sound.iterdir())
    if kind in ALONE:
        return [_alone(kind, place / f"{n:03d}", files, chance) for n in range(count)]
    folder = place / "mutated"
    folder.mkdir()
    for number in range(count):
        file = chance.choice(files)
        suffix = file.suffix if chance.random() < 0.95 else chance.choice(files).suffix
        path = folder / f"{number:03d}{suffix}"
        path.write_bytes(mutated(file.read_bytes(), chance))
        if kind in ("sounds", "speech"):
            path.with_suffix(".txt").write_text(TEXT)
    return [folder]


def _alone(kind: str, folder: Path, files: list[Path], chance: random.Random) -> Path:
    """A folder in which one file is mutated."""
    folder.mkdir()
    chosen = chance.choice(files)
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / chosen.name).write_bytes(mutated(chosen.read_bytes(), chance))
    if kind == "metadata":
        for file in files:
            if file != chosen:
                (folder / file.name).unlink()
        seeds.images(folder)
    return folder


# -- reading, in a child ---------------------------------------------------------------------


class Read(NamedTuple):
    """What became of the files of a case."""

    read: int
    refused: dict[str, str]
    slowest: float
    megabytes: float


def opener(kind: str) -> Callable[[Path, str], Any]:
    """How the recipe of a kind opens a folder."""
    import importlib

    from quintet import rooms

    name = RECIPES[kind]
    recipe: Any = Subject(name).recipe
    data: Any = importlib.import_module(f"quintet.{name.partition('/')[0]}.data")
    if kind == "speech":
        how = rooms.build(recipe).buckets  # type: ignore[attr-defined]
    else:
        fields = ("images", "videos", "sounds", "meshes")
        how = next(getattr(recipe, field) for field in fields if hasattr(recipe, field))
    return lambda folder, split: data.open_data(folder, how, split, 0)


def read_all(kind: str, folders: list[Path], wire: Connection) -> None:
    """Sends the name of each sample before it is read, and at the end a Read, or a mistake."""
    import warnings

    warnings.simplefilter("ignore")
    open_folder = opener(kind)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts = {"read": 0}
    refused: dict[str, str] = {}
    slowest = 0.0
    for folder in folders:
        for name, act in _samples(open_folder, folder):
            wire.send(name)
            begun = time.monotonic()
            try:
                _attempt(act, name, counts, refused)
            except BaseException as error:
                wire.send((name, f"{type(error).__name__}: {error}"))
                os._exit(1)
            slowest = max(slowest, time.monotonic() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wire.send(Read(counts["read"], refused, slowest, peak))
    os._exit(0)


def _attempt(
    act: Callable[[], Any], name: str, counts: dict[str, int], refused: dict[str, str]
) -> None:
    from quintet.engine.data.stream import DAMAGE
    from quintet.engine.errors import RunError

    try:
        act()
        counts["read"] += 1
    except (*DAMAGE, RunError) as error:  # what a run takes for damage, or for a refusal
        reason = str(error)
        if len(reason) < 12:
            raise AssertionError(f"refused without a reason: {reason!r}") from error
        refused[name] = reason


def _samples(
    open_folder: Callable[[Path, str], Any], folder: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What a run would do with a folder, one thing after another: open it, and read."""
    from quintet.engine.data.source import as_source
    from quintet.engine.keys import Key

    for split in ("train", "valid"):
        opened: list[Any] = []
        yield f"{folder.name} {split}", lambda: opened.append(open_folder(folder, split))  # noqa: B023
        for index in range(len(opened[0])) if opened else ():
            source = opened[0]
            for ask in ("length", "size"):
                if hasattr(source, ask):
                    getattr(source, ask)(index)
            act = functools.partial(as_source(source).keyed, index, Key(0, 0, index))
            yield f"{folder.name}/{as_source(source).name(index)}", act


def fuzz(kind: str, batch: int, count: int, seed: int) -> Result:
    place = subjects.FOLDER / "data" / f"{kind}-{batch:03d}"
    shutil.rmtree(place, ignore_errors=True)
    folders = prepare(kind, place, count, random.Random(f"{kind} {batch} {seed}"))
    here, there = Pipe()
    child = get_context("forkserver").Process(target=read_all, args=(kind, folders, there))
    begun = time.monotonic()
    child.start()
    there.close()
    found = _watch(here, child)
    seconds = time.monotonic() - begun
    if isinstance(found, str):
        return Result(False, None, seconds, f"{found} (in {place})", count)
    shutil.rmtree(place)
    said = f"{found.read} read, {len(found.refused)} refused by name"
    said += f", slowest {found.slowest:.2f} s, peak {found.megabytes:.0f} MB"
    return Result(True, None, seconds, said, count)


def _watch(wire: Connection, child: Any) -> Read | str:
    """The child's answer, or what went wrong, with the name of the sample."""
    name, limit = "the start", 60.0
    while True:
        try:
            if not wire.poll(limit):
                child.kill()
                child.join()
                return f"{name} took more than {limit:g} seconds"
            said = wire.recv()
        except EOFError:
            child.join()
            return f"the process ended with {child.exitcode} at {name}"
        if isinstance(said, str):
            name, limit = said, SECONDS
            continue
        child.join()
        return said if isinstance(said, Read) else f"{said[0]}: {said[1]}"


# -- whole runs ------------------------------------------------------------------------------


def trains(kind: str, seed: int) -> Result:
    """A run on a folder of which a third is damaged: it ends well and names what it skipped."""
    place = subjects.FOLDER / "data" / f"train-{kind}"
    shutil.rmtree(place, ignore_errors=True)
    (folder,) = prepare(kind, place, 10, random.Random(f"{kind} train {seed}"))
    for turn in range(3):
        for file in (place / "sound").iterdir():
            shutil.copy(file, folder / f"sound-{turn}-{file.name}")
    if kind in ("sounds", "speech"):
        for file in list(folder.iterdir()):
            file.with_suffix(".txt").write_text(TEXT)
    more = ["--max-damaged", 1, "--workers", 2]
    more += [f"--{SETTINGS[kind]}.valid-fraction", 0.3, f"--{SETTINGS[kind]}.valid-limit", 99]
    words = Subject(RECIPES[kind]).words(place / "run", *more)
    begun = time.monotonic()
    program = Everywhere([*words[:2], str(folder), *words[2:]], place / "run", 1)
    statuses = program.wait(300)
    seconds = time.monotonic() - begun
    if statuses != [0]:
        return Result(False, None, seconds, f"{statuses}: {program.said()[-500:]}")
    events = [event["message"] for event in read_lines(place / "run/events.jsonl")]
    skipped = [message for message in events if message.startswith("skipped ")]
    shutil.rmtree(place)
    return Result(True, 0, seconds, f"{len(skipped)} samples skipped by name", 10)


# -- workers ---------------------------------------------------------------------------------


def workers_of(program: Program, rank: int) -> list[int]:
    pid = program.children[rank].pid
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def strike(size: int, number: int, place: Path, *more: object) -> tuple[Program, float]:
    """A run whose last process loses a worker, or has one stopped, after its third step."""
    shutil.rmtree(place.parent, ignore_errors=True)
    words = Subject("image/vqgan_tiny").words(place, "--workers", 2, *more)
    program = Everywhere(words, place, size)
    came = until(lambda: len(subjects.reports(place)) >= 3, program)
    require(came, f"it did not start: {program.said()[-300:]}")
    chosen = workers_of(program, size - 1)
    require(chosen, "it has no workers")
    os.kill(chosen[0], number)
    return program, time.monotonic()


def worker_killed(size: int) -> Result:
    """It is replaced, said, and the run is the undisturbed one, bit for bit."""
    path = subjects.FOLDER / "data" / f"killed-{size}" / "run"
    reference = Subject("image/vqgan_tiny").reference(size)
    program, begun = strike(size, signal.SIGKILL, path)
    statuses = program.wait(300)
    require(set(statuses) == {0}, f"{statuses}: {program.said()[-500:]}")
    said = "died and were replaced, 1 times" in program.said()  # or its work was done by then
    problem = differs(path, reference, ended=True)
    require(not problem, problem)
    note = f"{'replaced' if said else 'not missed'}, and the end bit-identical"
    return Result(True, 0, time.monotonic() - begun, note)


def worker_hangs(size: int) -> Result:
    """Past the patience the run is refused, with the names of the samples."""
    path = subjects.FOLDER / "data" / f"hanging-{size}" / "run"
    # Long enough that what is loaded ahead does not last to the end.
    program, begun = strike(size, signal.SIGSTOP, path, "--data-timeout", 3, "--steps", 500)
    statuses = program.wait(60)
    seconds = time.monotonic() - begun
    require(2 in statuses, f"{statuses}: {program.said()[-500:]}")
    require("is stuck on one of built-in train" in program.said(), program.said()[-500:])
    return Result(True, None, seconds, "refused with the names of the samples")


def guarded(run: Callable[[], Result]) -> Callable[[], Result]:
    def attempt() -> Result:
        try:
            return run()
        except Wrong as wrong:
            return Result(False, None, 0.0, str(wrong))

    return attempt


def cases(full: bool, seed: int) -> Iterator[Case]:
    for kind, files in FILES.items():
        count = BATCH if full else SHORT
        for batch in range(files // BATCH if full else 1):
            run = functools.partial(fuzz, kind, batch, count, seed)
            yield Case(f"mutated {kind}, {count} from batch {batch}", f"mutated {kind}", run)
    for kind in SETTINGS if full else ("images",):
        run = functools.partial(trains, kind, seed)
        yield Case(f"training on mutated {kind}", "training on mutated files", run)
    for size in (1, 2) if full else (1,):
        for what, run in (("killed", worker_killed), ("hangs", worker_hangs)):
            name = f"a data worker {'is killed' if what == 'killed' else what}"
            yield Case(f"{name} ({size})", name, guarded(functools.partial(run, size)))

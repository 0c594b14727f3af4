"""Disks that are full, read-only, slow, lying or gone, and two runs in one folder.

A full and a read-only disk are real where the system lets us mount one (a small tmpfs); elsewhere
the same errors are raised at every opening for writing. What was done stands in the note.
"""

import contextlib
import errno
import itertools
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

from campaign import faults
from campaign.subjects import names
from campaign.table import Case
from campaign.trial import Trial, case, require

HELD = "is being trained by another process"
SHARES = (0.05, 0.35, 0.65, 0.9)
"""Of the space that a run takes at its fullest."""


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Generator[bool, None, None]:
    """A file system of `size` bytes mounted there; False where that is not permitted."""
    options = ["-t", "tmpfs", "-o", f"size={size // 1024}k", "campaign", str(folder)]
    mounted = _mount(*options)
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def _mount(*options: str) -> bool:
    try:
        return subprocess.run(["mount", *options], capture_output=True).returncode == 0
    except OSError:
        return False


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# -- full and read-only ---------------------------------------------------------------------------


def full_from_the_start(trial: Trial, share: float) -> str:
    one = _bytes_of(next(iter(sorted(trial.reference.glob("checkpoints/step-*")))))
    disk = trial.path.parent
    room = int(share * 4 * one) + _bytes_of(trial.reference / "frozen")
    with small_disk(disk, room) as real:
        if not real:
            return full_later(trial, int(share * 60))
        program = trial.start()
        if trial.came_too_late(program):
            return f"all of it fitted into {room:,} bytes"
        said = trial.refused(program)
        require("No space left" in said, said)
        require(_mount("-o", f"remount,size={20 * room + (64 << 20)}", str(disk)), "no remount")
        trial.ends_alike()
    return f"a real disk of {room:,} bytes: {_short(said, trial)}"


def full_meanwhile(trial: Trial, step: int) -> str:
    """Somebody else fills the disk while the run is under way, and then makes room."""
    disk = trial.path.parent
    with small_disk(disk, 400 << 20) as real:
        if not real:
            return full_later(trial, 3 * step)
        program = trial.start(partial(faults.slow_disk, 0.02))
        trial.reach(program, step)
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={disk}/junk", "bs=1M"], check=False, capture_output=True
        )
        if trial.came_too_late(program):
            return f"a real disk, full from about step {step}: too late to matter"
        said = trial.refused(program)
        (disk / "junk").unlink()
        trial.ends_alike()
    return f"a real disk, full from about step {step}: {_short(said, trial)}"


def full_later(trial: Trial, after: int) -> str:
    return _injected(trial, after, errno.ENOSPC)


def read_only_later(trial: Trial, after: int) -> str:
    return _injected(trial, after, errno.EROFS)


def _injected(trial: Trial, after: int, number: int) -> str:
    """From the given opening for writing on, nothing can be written."""
    folder = str(trial.path)
    program = trial.start(partial(faults.failing_writes, folder, after, number))
    if trial.came_too_late(program):
        return f"injected after {after} openings for writing: too late to matter"
    said = trial.refused(program)
    trial.ends_alike()
    return f"injected after {after} openings for writing: {_short(said, trial)}"


def read_only_at_a_resume(trial: Trial) -> str:
    disk = trial.path.parent
    with small_disk(disk, 400 << 20) as real:
        program = trial.start()
        trial.reach(program, 3)
        program.signal(signal.SIGKILL)
        program.wait()
        if not real:
            program = trial.start(partial(faults.failing_writes, str(trial.path), 0, errno.EROFS))
            said = trial.refused(program)
        else:
            require(_mount("-o", "remount,ro", str(disk)), "the disk could not be made read-only")
            program = trial.start()
            said = trial.refused(program)
            _mount("-o", "remount,rw", str(disk))
        trial.ends_alike()
    return f"{'a real disk' if real else 'injected'}: {_short(said, trial)}"


# -- lying, slow, gone ----------------------------------------------------------------------------


def failing_fsync(trial: Trial, after: int) -> str:
    program = trial.start(partial(faults.failing_fsync, after))
    if trial.came_too_late(program):
        return f"after {after} calls: too late to matter"
    said = trial.refused(program)
    trial.ends_alike()
    return f"after {after} calls: {_short(said, trial)}"


def slow(trial: Trial, seconds: float) -> str:
    trial.ends_alike(trial.start(partial(faults.slow_disk, seconds)))
    return f"every sync and rename took {seconds} s longer"


def moved_away(trial: Trial, step: int) -> str:
    program = trial.start(partial(faults.slow_disk, 0.02))
    trial.reach(program, step)
    away = trial.place / "elsewhere"
    trial.path.rename(away)
    said = trial.stopped(program)
    require(not trial.path.exists(), "it made its folder anew")
    away.rename(trial.path)
    trial.sound()
    trial.lost = trial.taken - trial.kept
    trial.ends_alike()
    return _short(said, trial)


def removed(trial: Trial, step: int) -> str:
    program = trial.start(partial(faults.slow_disk, 0.02))
    trial.reach(program, step)
    gone = trial.place / "gone"
    trial.path.rename(gone)
    shutil.rmtree(gone)
    said = trial.stopped(program)
    require(not trial.path.exists(), "it made its folder anew")
    return _short(said, trial)


# -- two runs in one folder -----------------------------------------------------------------------


def second_refused(trial: Trial, step: int) -> str:
    first = trial.start(partial(faults.slow_disk, 0.05))
    trial.reach(first, step)
    second = trial.start()
    said = trial.stopped(second)
    require(HELD in said, said)
    trial.ends_alike(first)
    return _short(said, trial)


def both_at_once(trial: Trial) -> str:
    pair = [trial.start(partial(faults.slow_disk, 0.05)), trial.start()]
    statuses = [program.wait(300) for program in pair]
    ended = [set(each) for each in statuses]
    require(sorted(ended, key=str) == [{0}, {2}], f"statuses {statuses}")
    loser = pair[ended.index({2})]
    require(loser.sentence(), loser.said()[-400:])
    trial.ends_alike()
    return _short(loser.sentence(), trial)


def lock_of_the_dead(trial: Trial, step: int) -> str:
    first = trial.start()
    trial.reach(first, step)
    first.signal(signal.SIGKILL)
    begun = time.monotonic()
    first.wait()
    trial.ends_alike()
    return f"the next one went on {time.monotonic() - begun:.1f} s after the kill"


def _short(said: str, trial: Trial) -> str:
    return said.removeprefix("quintet: ").replace(str(trial.path), "RUN")[:160]


# -- the campaign ---------------------------------------------------------------------------------

Act = Callable[[Trial], str]


def _one(kind: str, title: str, act: Act, recipe: str, size: int = 1) -> Case:
    name = f"disk: {kind}, {title}"
    return case(kind, name, Trial(f"{name} {recipe} {size}", recipe, size), act)


def cases(full: bool, seed: int) -> Iterator[Case]:
    chance = random.Random(seed)
    yield from _full_campaign(chance) if full else _short_campaign(chance)


def _short_campaign(chance: random.Random) -> Iterator[Case]:
    mesh, after = "mesh/autoencoder_tiny", chance.randint(4, 20)
    plan: list[tuple[str, str, Act]] = [
        ("full disk", "from the start", partial(full_from_the_start, share=0.35)),
        ("read-only disk", "at a resume", read_only_at_a_resume),
        ("failing fsync", f"{after}", partial(failing_fsync, after=after)),
        ("vanished folder", "step 2", partial(moved_away, step=2)),
        ("two runs in one folder", "second", partial(second_refused, step=1)),
    ]
    yield from (_one(kind, title, act, mesh) for kind, title, act in plan)


def _full_campaign(chance: random.Random) -> Iterator[Case]:
    for recipe, share in itertools.product(names(), SHARES):
        act = partial(full_from_the_start, share=share)
        yield _one("full disk", f"{share} of what it takes", act, recipe)
    for recipe, size in itertools.product(names(), (1, 2)):
        step, slowness = chance.randint(1, 6), chance.choice([0.02, 0.05, 0.1])
        writes = [chance.randint(0, 60) for _ in range(3)]
        syncs = [chance.randint(0, 50) for _ in range(3)]
        plan: list[tuple[str, str, Act]] = [
            ("full disk", f"from step {step}", partial(full_meanwhile, step=step)),
            ("read-only disk", "at a resume", read_only_at_a_resume),
            ("slow disk", f"{slowness} s", partial(slow, seconds=slowness)),
            ("vanished folder", f"moved at step {step}", partial(moved_away, step=step)),
            ("vanished folder", f"removed at step {step}", partial(removed, step=step)),
            ("two runs in one folder", "second", partial(second_refused, step=step)),
            ("two runs in one folder", "at once", both_at_once),
            ("two runs in one folder", "a dead one", partial(lock_of_the_dead, step=step)),
        ]
        for n in writes:
            plan.append(("full disk", f"injected {n}", partial(full_later, after=n)))
            plan.append(("read-only disk", f"injected {n}", partial(read_only_later, after=n)))
        plan += [("failing fsync", f"{n}", partial(failing_fsync, after=n)) for n in syncs]
        yield from (_one(kind, title, act, recipe, size) for kind, title, act in plan)

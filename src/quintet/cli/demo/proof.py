"""A run is killed, resumed, and compared with the uninterrupted one."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder, finite, read_json, read_lines
from quintet.files import atomic_write, digest_of, write_json
from quintet.report.markup import details, table, text

CLOCK = ("seconds", "samples_per_second", "waiting")
"""What a report says of time; it differs between equal runs."""
GIVEN_UP = 300.0
"""Seconds without progress after which a process counts as stuck."""


@dataclass(frozen=True)
class Proof:
    """What was compared, and what differs."""

    start: int
    """The checkpoint that the copy started from."""
    killed: int | None
    """The last step that the killed process reported; None if it ended before the signal."""
    resumed: int | None
    """The checkpoint that the run was resumed from."""
    last: int
    files: Mapping[str, tuple[str, str]]
    """SHA-256 of each file of the last checkpoint, of the uninterrupted run and of the resumed
    one; empty where there is no such file."""
    records: int
    """Reports and evaluations that were compared."""
    differing: tuple[str, ...]

    @property
    def holds(self) -> bool:
        same = all(one == other for one, other in self.files.values())
        return bool(self.files) and same and self.records > 0 and not self.differing


def stop_and_resume(run: Path, copy: Path, say: Callable[[str], None]) -> Proof:
    """Continue a copy of the run from the checkpoint of its `keep_every` in a process of its own,
    kill it, resume it to the end, and compare. `copy` may be that of an interrupted call."""
    settings = read_json(run / "config.json")["settings"]
    start, last = settings["keep_every"], settings["steps"]
    about = copy.with_suffix(".json")
    if not about.exists():
        copy_at(run, start, copy)
        say(f"Continuing a copy from step {start} in a process of its own, to be killed.")
        killed, resumed = kill_midway(copy, start, last)
        write_json(about, {"start": start, "killed": killed, "resumed": resumed})
    facts = read_json(about)
    if facts["killed"] is not None:
        say(f"Killed at step {facts['killed']}; resuming from step {facts['resumed']}.")
    finish(copy, last)
    return compare(run, copy, start, last, facts)


def copy_at(run: Path, step: int, copy: Path) -> None:
    """The run as it was on disk at that checkpoint; an unfinished copy is completed."""
    checkpoint = Path("checkpoints") / f"step-{step:08d}"
    copy.mkdir(exist_ok=True)
    if (copy / "config.json").exists():
        return
    shutil.copytree(run / checkpoint, copy / checkpoint, dirs_exist_ok=True)
    for name in ("data.json", "frozen"):
        source = run / name
        if source.is_dir():
            shutil.copytree(source, copy / name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, copy / name)
    atomic_write(copy / "config.json", (run / "config.json").read_bytes())


def kill_midway(copy: Path, start: int, last: int) -> tuple[int | None, int | None]:
    """Resume the copy and send SIGKILL after its first report beyond a checkpoint of its own.
    Returns the step reported last and the checkpoint left, or None for a process that has ended.
    Checkpoints fall on reports: those of a resumed run then cover the same steps."""
    interval = read_json(copy / "config.json")["settings"]["log_every"]
    every = max(1, (last - start) // 4 // interval) * interval
    process = resume(copy, "--save-every", str(every))
    try:
        wait(process, copy, lambda: reported(copy) > newest(copy) > start)
        ended = process.poll()
    finally:
        process.kill()  # SIGKILL: the process cannot react
        process.wait()
    if ended is not None:
        check(ended, copy)
        return None, None
    return reported(copy), newest(copy)


def finish(copy: Path, last: int) -> None:
    if newest(copy) == last:  # its last checkpoint comes after all else
        return
    process = resume(copy)
    try:
        wait(process, copy, lambda: False)
    finally:
        process.kill()
        process.wait()
    check(process.returncode, copy)


def resume(copy: Path, *flags: str) -> "subprocess.Popen[bytes]":
    """`quintet resume` in a process of its own, which writes into output.txt."""
    with open(copy / "output.txt", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "quintet", "resume", str(copy), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def wait(process: "subprocess.Popen[bytes]", copy: Path, until: Callable[[], bool]) -> None:
    """Until then, or until the process ends; a stuck one is an error."""
    size, moved = 0, time.monotonic()
    while process.poll() is None and not until():
        grown = sum(path.stat().st_size for path in copy.glob("*.*") if path.is_file())
        if grown != size:
            size, moved = grown, time.monotonic()
        elif time.monotonic() - moved > GIVEN_UP:
            raise RunError(f"the resumed run is stuck; see {copy / 'output.txt'}")
        time.sleep(0.01)


def check(status: int, copy: Path) -> None:
    if status:
        raise RunError(f"the run could not be resumed; see {copy / 'output.txt'}")


def reported(copy: Path) -> int:
    records = read_lines(copy / "metrics.jsonl") if (copy / "metrics.jsonl").exists() else []
    return max((record["step"] for record in records), default=0)


def newest(copy: Path) -> int:
    return max(RunFolder(copy).steps(), default=0)


# -- comparison ---------------------------------------------------------------------------------


def compare(run: Path, copy: Path, start: int, last: int, facts: Mapping[str, Any]) -> Proof:
    """Every file of weights and state of the last checkpoint, and every report since the copy."""
    folders = [each / "checkpoints" / f"step-{last:08d}" for each in (run, copy)]
    names = sorted({path.name for f in folders for path in f.glob("*.safetensors")})
    files = {name: (digest(folders[0] / name), digest(folders[1] / name)) for name in names}
    ours, theirs = (timeless(each, start) for each in (run, copy))
    differing = [
        f"step {key[0]}: {name}"
        for key in sorted({*ours, *theirs})
        for name in sorted({*ours.get(key, {}), *theirs.get(key, {})})
        if ours.get(key, {}).get(name) != theirs.get(key, {}).get(name)
    ]
    return Proof(
        start=start,
        killed=facts["killed"],
        resumed=facts["resumed"],
        last=last,
        files=files,
        records=len(ours),
        differing=tuple(differing),
    )


def digest(path: Path) -> str:
    return digest_of(path) if path.is_file() else ""


def timeless(run: Path, start: int) -> dict[tuple[int, bool], dict[str, Any]]:
    """Reports and evaluations after a step, by step and kind, without their times."""
    records = [r for r in read_lines(run / "metrics.jsonl") if r["step"] > start]
    return {
        (r["step"], "order" in r): {n: finite(v) for n, v in r.items() if n not in CLOCK}
        for r in records
    }


# -- page ---------------------------------------------------------------------------------------


def sentence(proof: Proof) -> str:
    stop = (
        f"killed (SIGKILL) at step {proof.killed}, resumed from step {proof.resumed}"
        if proof.killed is not None
        else "resumed; the process had ended before the signal"
    )
    count = sum(one == other for one, other in proof.files.values())
    equal = f"{count} of {len(proof.files)} files of the last checkpoint have the same SHA-256"
    logs = (
        f"all {proof.records} reports are equal"
        if not proof.differing
        else f"{len(proof.differing)} values of {proof.records} reports differ"
    )
    verdict = "equal" if proof.holds else "NOT EQUAL"
    return f"{verdict}: a copy was {stop}; {equal}, {logs}."


def section(proof: Proof) -> str:
    rows = {
        text(name): [
            f"<code>{text(one[:16] or 'missing')}</code>",
            f"<code>{text(other[:16] or 'missing')}</code>",
            "equal" if one == other else "differs",
        ]
        for name, (one, other) in proof.files.items()
    }
    head = ["SHA-256, uninterrupted", "killed and resumed", ""]
    differing = "".join(f"<li>{text(name)}</li>" for name in proof.differing[:50])
    said = sentence(proof)
    return (
        '<section class="proof"><h2>Killed and resumed</h2>'
        f'<p class="verdict {"good" if proof.holds else "bad"}">'
        f"{'✓' if proof.holds else '✗'} {text(said[:1].upper() + said[1:])}</p>"
        f"<p>The copy started from the checkpoint of step {proof.start} and went on to step "
        f"{proof.last} in processes of its own.</p>"
        f"{details('Digests', table(head, rows))}"
        f"{details('Values that differ', f'<ul>{differing}</ul>' if differing else '')}</section>"
    )

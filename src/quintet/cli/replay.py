"""`quintet replay`."""

import dataclasses
import json
import secrets
from pathlib import Path
from typing import Any

import tyro

from quintet import rooms
from quintet.cli.common import (
    check_positive,
    need_data,
    parse,
    recorded,
    table,
)
from quintet.engine.errors import RunError, Stopped
from quintet.suggest import command


@dataclasses.dataclass(kw_only=True)
class Replay:
    """Repeat one step from the checkpoint before it and show its losses and samples, or verify the
    log of a run by repeating the steps of random reports."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    step: int | None = None
    """Step to repeat: the one that ended at this step count."""
    verify: int | None = None
    """Number of reports to verify; the exit status is 1 if the log differs."""
    seed: int | None = None
    """Seed of the choice of reports for --verify; random by default."""


def replay(arguments: list[str]) -> None:
    asked = parse(Replay, arguments, "replay")
    check_positive("--verify", asked.verify)
    if (asked.step is None) == (asked.verify is None):
        raise RunError("give --step N to repeat a step, or --verify N to verify N reports")
    _, recipe = recorded(asked.run)
    moved = command("resume", asked.run, "--data", "FOLDER")
    need_data(recipe, asked.run, "its steps cannot be replayed from the command line", moved)
    build = lambda settings: rooms.build(settings, asked.run)
    if asked.step is not None:
        one_step(build, recipe, asked.run, asked.step)
    else:
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        verified(build, recipe, asked.run, asked.verify, seed)


def one_step(build: Any, recipe: Any, run: Path, step: int) -> None:
    from quintet.engine.runs.folder import finite
    from quintet.engine.tools.replay import replay as again

    replayed = again(build, recipe, run, step)
    table(replayed.losses)
    print(f"samples: {', '.join(replayed.samples)}")
    differing = [row for row in replayed.compared if not row.verified]
    compared = ["samples"] * bool(replayed.checked) + ["losses"] * bool(replayed.compared)
    if alike := compared[: len(compared) - bool(differing)]:
        print(f"The {' and '.join(alike)} of steps {replayed.steps} match the log.")
    if replayed.why_not:
        what = "losses" if replayed.checked else "samples and losses"
        print(f"Its {what} were not compared: {replayed.why_not}.")
    values = {"step": step, "losses": replayed.losses, "samples": replayed.ids}
    verdict = {"checked": bool(compared) and not differing, "compared": compared}
    print(json.dumps(finite({**values, **verdict}), allow_nan=False))
    if differing:
        losses = ", ".join(f"{row.name} {row.logged} -> {row.replayed}" for row in differing)
        cause = "files, texts, settings or code have changed since"
        if replayed.changes:
            cause = f"the training data has changed: {replayed.changes}"
        raise Stopped(f"the log of steps {replayed.steps} has other losses: {losses}; {cause}", 1)


def verified(build: Any, recipe: Any, run: Path, count: int, seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from quintet.engine.tools.replay import verify

    verification = verify(build, recipe, run, count, seed)
    shown = Table("step", "value", "logged", "replayed", "difference", "")
    text = lambda value: f"{value:.9g}" if isinstance(value, float) else str(value)
    for row in verification.rows:
        if row.verified and not row.name.startswith(("order", "val/")) and row.name[-5:] != "/loss":
            continue
        apart = "" if row.difference is None else f"{row.difference:.2g}"
        verdict = "verified" if row.verified else "differs"
        shown.add_row(str(row.step), row.name, text(row.logged), text(row.replayed), apart, verdict)
    Console().print(shown)
    for defect in verification.defects:
        print(f"differs: {defect}")
    within = f"losses and validation metrics within {verification.tolerance:.1%}"
    required = within if verification.tolerance else "all values equal"
    print(f"required: {required} ({verification.reason})")
    values = {
        "verified": verification.verified,
        "steps": sorted({row.step for row in verification.rows}),
        "seed": seed,
        "tolerance": verification.tolerance,
        "largest_difference": max(row.difference or 0.0 for row in verification.rows),
        "differs": [f"step {r.step}: {r.name}" for r in verification.rows if not r.verified]
        + verification.defects,
    }
    print(json.dumps(values))
    if not verification.verified:
        raise Stopped(f"the log of {run} differs from the replay", 1)

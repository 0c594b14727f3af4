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


@dataclasses.dataclass(kw_only=True)
class Replay:
    """Take one step again from the checkpoint before it; show its losses and its samples. Or verify
    the log of a run: take the steps of random reports again, and compare."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    step: int | None = None
    """The step to take again: the one that brought the run to this number."""
    verify: int | None = None
    """Instead: the number of reports to verify. The exit status is 1 if the log differs."""
    seed: int | None = None
    """verify: chooses the reports; the default is another choice each time."""


def replay(given: list[str]) -> None:
    asked = parse(Replay, given, "replay")
    check_positive("--verify", asked.verify)
    if (asked.step is None) == (asked.verify is None):
        raise RunError("give --step N to take a step again, or --verify N to verify N reports")
    _, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "its steps cannot be replayed from the command line")
    build = lambda settings: rooms.build(settings, asked.run)
    if asked.step is not None:
        one_step(build, recipe, asked.run, asked.step)
    else:
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        verified(build, recipe, asked.run, asked.verify, seed)


def one_step(build: Any, recipe: Any, run: Path, step: int) -> None:
    from quintet.engine.runs.folder import finite
    from quintet.engine.tools.replay import replay as again

    found = again(build, recipe, run, step)
    table(found.losses)
    print(f"samples: {', '.join(found.samples)}")
    if found.checked:
        print(f"The samples of steps {found.checked} are those of the log.")
    else:
        print("The log does not have this step, so that its samples could not be compared.")
    values = {"step": step, "losses": found.losses, "samples": found.ids}
    print(json.dumps(finite({**values, "checked": bool(found.checked)}), allow_nan=False))


def verified(build: Any, recipe: Any, run: Path, count: int, seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from quintet.engine.tools.replay import verify

    found = verify(build, recipe, run, count, seed)
    shown = Table("step", "value", "logged", "replayed", "difference", "")
    text = lambda value: f"{value:.9g}" if isinstance(value, float) else str(value)
    for row in found.rows:
        if row.verified and not row.name.startswith(("order", "val/")) and row.name[-5:] != "/loss":
            continue
        apart = "" if row.difference is None else f"{row.difference:.2g}"
        verdict = "verified" if row.verified else "differs"
        shown.add_row(str(row.step), row.name, text(row.logged), text(row.replayed), apart, verdict)
    Console().print(shown)
    for defect in found.defects:
        print(f"differs: {defect}")
    within = f"losses and validation metrics within {found.tolerance:.1%}"
    required = within if found.tolerance else "all values equal"
    print(f"required: {required} ({found.reason})")
    values = {
        "verified": found.verified,
        "steps": sorted({row.step for row in found.rows}),
        "seed": seed,
        "tolerance": found.tolerance,
        "largest_difference": max(row.difference or 0.0 for row in found.rows),
        "differs": [f"step {r.step}: {r.name}" for r in found.rows if not r.verified]
        + found.defects,
    }
    print(json.dumps(values))
    if not found.verified:
        raise Stopped(f"the log of {run} is not what a replay gives", 1)

"""The recipe of a run as config.json holds it: what was left open is decided here, once."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from quintet.engine.config import Recipe, differences, to_json
from quintet.engine.errors import RunError
from quintet.engine.settings import free_names

Mode = Literal["new", "resume", "resume_or_new"]


def settled(
    recipe: Recipe,
    about: Mapping[str, Any] | None,
    path: Path,
    mode: Mode,
    *,
    processes: int,
    precision: str,
) -> Recipe:
    """The recipe of a new run (`about` is None), or of one resumed from its config.json: lengths
    and precision as recorded, the same global batch; other changes of its result are refused.

    `precision` is what `auto` means on this machine.
    """
    if about is None:
        length = recipe.schedule_steps or recipe.steps
        planned = recipe.planned_steps or length
        lengths = {"schedule_steps": length, "planned_steps": planned}
        changes: dict[str, Any] = {**lengths, "precision": precision}
        return dataclasses.replace(recipe, **changes)
    recorded = about.get("settings", {})
    recipe = dataclasses.replace(recipe, **_left_open(recipe, recorded))
    _require_same(recipe, recorded, path, mode)
    if mode == "resume_or_new" and recipe.auto_batch and "auto_batch" in about:
        recipe = recipe.with_micro_batch(recorded["batch_size"])
    accumulate = _accumulate(recipe, about.get("global_batch"), processes)
    return dataclasses.replace(recipe, accumulate=accumulate)


def _left_open(recipe: Recipe, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded values of what was not asked for; a longer run stretches its schedule."""
    changes: dict[str, Any] = {}
    length: Any = recorded.get("schedule_steps")
    if recipe.schedule_steps in (None, length):
        longer = length == recorded.get("steps") and recipe.steps > length
        changes["schedule_steps"] = recipe.steps if longer else length
    if recipe.planned_steps is None:
        changes["planned_steps"] = recorded.get("planned_steps")
    if recipe.precision == "auto":
        changes["precision"] = recorded.get("precision")
    return changes


def _require_same(recipe: Recipe, recorded: Mapping[str, Any], path: Path, mode: Mode) -> None:
    """What would change the result must be as it was."""
    free = free_names(recipe) - ({"data"} if mode == "resume_or_new" else set())
    changes = differences(recorded, to_json(recipe))
    changed = [
        f"{name} was {old!r} and is now {new!r}"
        for name, (old, new) in changes.items()
        if name not in free
    ]
    if changed:
        raise RunError(
            f"{path} was started with another configuration: {'; '.join(changed)}; put these back, "
            f"or start a new run with another --run, and --init-from {path} for its weights"
        )


def _accumulate(recipe: Recipe, wanted: Any, processes: int) -> int:
    """Micro-batches that keep the global batch of the run."""
    each = dataclasses.replace(recipe, accumulate=1).global_batch(processes)
    if not isinstance(wanted, int) or wanted < 1 or wanted % each:
        raise RunError(
            f"the run's global batch is {wanted}; {processes} processes of batch_size "
            f"{recipe.batch_size} do not divide it: choose a batch_size that does"
        )
    return wanted // each

"""Stages of the demo: the runs declared in each room's demo.py, and their settings."""

import math
import tempfile
from pathlib import Path
from typing import Any

from quintet import rooms
from quintet.engine.config import Recipe, from_json, to_json
from quintet.engine.errors import RunError
from quintet.shared.demo import Live, RoomDemo, Stage

CHECKPOINTS = 4
"""Per run: a kill costs a quarter at most."""
SLOWER = 1.3
"""Multiple of its stated duration that a stage may take before its steps are reduced."""
FEWEST = 10
"""Minimum number of steps of a stage."""


def demos() -> list[RoomDemo]:
    found = (rooms.Room(name).demo for name in rooms.rooms())
    return sorted((demo for demo in found if demo is not None), key=lambda demo: demo.position)


def all_stages() -> list[Stage]:
    return [stage for demo in demos() for stage in demo.stages]


def live() -> Live:
    found = next((demo.live for demo in demos() if demo.live), None)
    if found is None:
        raise RunError("no room declares a stage to train live: LIVE of quintet/ROOM/demo.py")
    return found


def fitting_settings(
    stage: Stage, demo: Path, steps: int | None = None, multiple: int = 1
) -> tuple[Recipe, str | None]:
    """Settings that take about the stated time here, and a sentence where steps were reduced.
    `steps` are those of a test of the installation."""
    from quintet.engine.tools.estimate import seconds_per_step

    if steps is not None:
        return settings_of(stage, demo, steps, minimal=True), None
    settings = settings_of(stage, demo, stage.steps)
    with tempfile.TemporaryDirectory() as folder:
        each = seconds_per_step(rooms.build, settings, Path(folder), rooms.load)
    allowed = SLOWER * stage.seconds / each
    if settings.steps <= allowed:
        return settings, None
    steps = max(FEWEST, multiple, int(allowed) // multiple * multiple)
    sentence = (
        f"{steps} steps instead of {settings.steps}, as a step takes {each:.2g} s on this machine"
    )
    return settings_of(stage, demo, steps), sentence


def settings_of(stage: Stage, demo: Path, steps: int, minimal: bool = False) -> Recipe:
    """The recipe at the length of the demo; the learning-rate schedule follows the steps."""
    evaluations = 1 if minimal and stage.evaluations < 3 else stage.evaluations
    changes: dict[str, Any] = {
        "steps": steps,
        "device": "cpu",
        "save_every": math.ceil(steps / CHECKPOINTS),
        "evaluate_every": math.ceil(steps / evaluations) if evaluations > 1 else 0,
        "trackers": [],
        **{name: str((demo / folder).resolve()) for name, folder in stage.depends_on.items()},
        **stage.settings,
    }
    if minimal:
        changes |= {"workers": 0, "log_every": 1, **stage.minimal_settings}
    recipe = rooms.recipe_function(stage.recipe)()
    settings = to_json(recipe)
    for name, value in changes.items():
        *groups, last = name.split(".")
        group = settings
        for key in groups:
            group = group[key]
        group[last] = value
    return from_json(type(recipe), settings)

"""Stages of the demo: the runs declared in each room's demo.py, and their settings by length."""

import math
import tempfile
from pathlib import Path
from typing import Any, Literal

from quintet import rooms
from quintet.engine.config import Recipe, from_json, to_json
from quintet.shared.demo import Stage

Length = Literal["full", "quick"] | int
"""Length of the demo; a number of steps per stage only tests the installation."""


def all_stages() -> list[Stage]:
    return [stage for name in rooms.rooms() for stage in rooms.Room(name).stages]


def steps_of(stage: Stage, length: Length) -> int:
    return length if isinstance(length, int) else stage.steps[length]


SLOWER = 1.3
"""Multiple of its stated duration that a stage may take before its steps are reduced."""
FEWEST = 10
"""Minimum number of steps of a stage."""


def fitting_settings(stage: Stage, length: Length, demo: Path) -> tuple[Recipe, str | None]:
    """Settings that take about the stated time here, and a sentence where steps were reduced."""
    from quintet.engine.tools.estimate import seconds_per_step

    settings = settings_of(stage, length, demo)
    if isinstance(length, int):
        return settings, None
    with tempfile.TemporaryDirectory() as folder:
        each = seconds_per_step(rooms.build, settings, Path(folder), rooms.load)
    allowed = SLOWER * stage.seconds[length] / each
    if settings.steps <= allowed:
        return settings, None
    steps = max(FEWEST, round(allowed))
    sentence = (
        f"{steps} steps instead of {settings.steps}, as a step takes {each:.2g} s on this machine"
    )
    return settings_of(stage, length, demo, steps), sentence


def seconds_of(stage: Stage, length: Length) -> float:
    return 3 if isinstance(length, int) else stage.seconds[length]


def settings_of(stage: Stage, length: Length, demo: Path, steps: int | None = None) -> Recipe:
    """The recipe at the length of the demo; the learning-rate schedule follows the steps."""
    recipe = rooms.recipe_function(stage.recipe)()
    steps = steps or steps_of(stage, length)
    changes: dict[str, Any] = {
        "steps": steps,
        "device": "cpu",
        "save_every": math.ceil(steps / 4),  # a kill costs a quarter at most
        "evaluate_every": math.ceil(steps / 2)
        if stage.evaluate_halfway and length == "full"
        else 0,
        "trackers": [],
        **{name: str((demo / folder).resolve()) for name, folder in stage.depends_on.items()},
        **stage.settings,
    }
    if length != "full":
        changes |= stage.quick_settings
    if isinstance(length, int):
        changes |= {"workers": 0, "log_every": 1, **stage.minimal_settings}
    settings = to_json(recipe)
    for name, value in changes.items():
        *groups, last = name.split(".")
        group = settings
        for key in groups:
            group = group[key]
        group[last] = value
    return from_json(type(recipe), settings)

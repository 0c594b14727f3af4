"""Stages of the demo: the runs that the rooms declare in demo.py, and their settings by length."""

import math
from pathlib import Path
from typing import Any, Literal

from quintet import rooms
from quintet.engine.config import Recipe, from_json, to_json
from quintet.shared.demo import Stage

Length = Literal["full", "quick"] | int
"""A number is steps per stage: it tests the installation only."""


def all_stages() -> list[Stage]:
    return [stage for name in rooms.rooms() for stage in rooms.Room(name).stages]


def steps_of(stage: Stage, length: Length) -> int:
    return length if isinstance(length, int) else stage.steps[length]


def seconds_of(stage: Stage, length: Length) -> float:
    return 3 if isinstance(length, int) else stage.seconds[length]


def settings_of(stage: Stage, length: Length, demo: Path) -> Recipe:
    """The recipe at the length of the demo; the learning-rate schedule follows the steps."""
    recipe = rooms.recipe_function(stage.recipe)()
    steps = steps_of(stage, length)
    changes: dict[str, Any] = {
        "steps": steps,
        "device": "cpu",
        "save_every": math.ceil(steps / 4),  # bounds what a kill costs
        "evaluate_every": math.ceil(steps / 2)
        if stage.evaluate_halfway and length == "full"
        else 0,
        "trackers": [],
        **{name: str((demo / folder).resolve()) for name, folder in stage.depends_on.items()},
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

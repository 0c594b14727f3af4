"""`quintet demo`."""

import dataclasses
from pathlib import Path

from quintet import rooms
from quintet.cli.training import launch
from quintet.cli.words import parse


@dataclasses.dataclass(kw_only=True)
class Demo:
    """Train on built-in data on the CPU, in a few minutes, and show what came of it."""

    run: Path = Path("runs/demo")
    """Where; started again, it goes on."""
    steps: int | None = None
    """Fewer steps for a quick look."""


def demo(given: list[str]) -> None:
    asked = parse(Demo, given, "demo")
    name = "image/vqgan_tiny"
    recipe = dataclasses.replace(rooms.recipe_function(name)(), device="cpu")
    if asked.steps:
        recipe = dataclasses.replace(recipe, steps=asked.steps)
    launch(name, recipe, asked.run, "continue")

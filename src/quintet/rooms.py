"""Finding rooms and recipes. A room is a folder with recipes.py; there is no list to edit.

Names from files and the command line are looked up among what is there, never imported as given.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.config import ConfigError, Recipe, from_json
from quintet.engine.errors import RunError

if TYPE_CHECKING:
    from quintet.engine.task import Task

HERE = Path(__file__).parent


def rooms() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/recipes.py"))


def recipes(room: str) -> dict[str, Callable[[], Recipe]]:
    """The public functions that recipes.py defines, by name."""
    module = importlib.import_module(f"quintet.{room}.recipes")
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == module.__name__
    }


def names() -> list[str]:
    return [f"{room}/{name}" for room in rooms() for name in recipes(room)]


def recipe_function(name: str) -> Callable[[], Recipe]:
    room, _, short = name.partition("/")
    if re.fullmatch(r"\w+/\w+", name) and room in rooms() and short in recipes(room):
        return recipes(room)[short]
    raise RunError(f"there is no recipe '{name}'; 'quintet list' shows them: {', '.join(names())}")


def room_of(name: str) -> str:
    recipe_function(name)
    return name.partition("/")[0]


def part_of_room(name: str, module: str) -> Any:
    """A module of the room that the recipe `name` belongs to."""
    return importlib.import_module(f"quintet.{room_of(name)}.{module}")


def build(name: str, recipe: Recipe, run: Path | None = None) -> "Task":
    """The task of a recipe; of a `run` that is there, with the frozen stages that it keeps."""
    if run is not None:
        from quintet.engine.frozen import resolved

        recipe = resolved(recipe, run)
    return part_of_room(name, "task").build(recipe)


def recorded(about: dict[str, Any], where: Path) -> tuple[str, Any]:
    """Recipe name and settings of a run, from its config.json."""
    name = about.get("recipe")
    if "model" in about:
        raise RunError(f"{where} is an exported model, not a run; name the run that it came from")
    if not isinstance(name, str):
        raise RunError(
            f"{where} was started from Python with a model of its own; "
            "go on with it there: trainer.train(resume=True)"
        )
    kind = type(recipe_function(name)())
    try:
        return name, from_json(kind, about.get("settings"))
    except ConfigError as error:
        raise RunError(f"{where}/config.json: {error}") from None


def load(source: str | Path) -> Any:
    """A model ready to use, with averaged weights, from a run or an exported folder."""
    from quintet.engine.folder import RunFolder
    from quintet.engine.part import load_strictly
    from quintet.engine.pretrained import weights_of

    path = Path(source)
    folder = RunFolder.open(path)
    if "model" in folder.about:
        return model_class(folder.about, path).from_pretrained(path)
    name, recipe = recorded(folder.about, path)
    task = build(name, recipe, path)
    network = task.parts[task.main].network
    load_strictly(network, weights_of(path, task.main), str(path))
    return network.eval()


def model_class(about: dict[str, Any], where: Path) -> Any:
    """The class that an exported folder names, if a room has it."""
    from quintet.engine.pretrained import Pretrained

    room, _, name = str(about.get("model")).partition("/")
    if room in rooms() and re.fullmatch(r"\w+", name):
        found = getattr(importlib.import_module(f"quintet.{room}.model"), name, None)
        if isinstance(found, type) and issubclass(found, Pretrained):
            return found
    raise RunError(
        f"{where}/config.json names a model that is not Quintet's: {about.get('model')!r}"
    )

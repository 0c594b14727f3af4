"""Rooms and families, found by their folders; there is no list to edit.

A room is one modality: a folder of the package with recipes.py. A family is one model with all that
belongs to it: a folder of its room. The class of a recipe stands in the config.py of its family:
that is how a recipe names it. Names from files and the command line are looked up among what is
there, never imported as written.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from quintet.engine.config import ConfigError, Recipe, from_json, to_json
from quintet.engine.errors import RunError
from quintet.engine.settings import each_setting
from quintet.suggest import among, command

if TYPE_CHECKING:
    from quintet.engine.task import Task
    from quintet.shared.demo import RoomDemo
    from quintet.shared.outputs import Outputs
    from quintet.shared.sampling import Trained


class TaskModule(Protocol):
    """`ROOM/FAMILY/task.py`. A generator's also has `to_encode(recipe, tokenizer, weights)`: the
    samples of `recipe.data` whose codes shards will hold (shared/encoded.py), and their collate."""

    def build(self, recipe: Any) -> "Task": ...


class SampleModule(Protocol):
    """`ROOM/FAMILY/sample.py`: what `quintet sample` does for its runs. Imports no torch. With
    `together(model, calls)` as in shared/generation/sampling.py, `quintet serve` generates for
    several clients at once; with `embed_texts(model, texts)` it serves embeddings. Where QUICK is
    true, requests do not wait for others on an idle device, and run in turn on a CPU."""

    EXAMPLE: str
    """Arguments after the run, for the help; files in it are those of a user."""
    Flags: type
    """A dataclass of plain values, one sentence under each field."""

    def example(self, recipe: Any, run: Path) -> list[str]:
        """Arguments that work for a run just trained, without files of a user; empty if none do."""
        ...

    def sample(
        self, trained: "Trained", inputs: Sequence[Path], out: Path, flags: Any
    ) -> list[Path]: ...


class ExportModule(Protocol):
    """`ROOM/FAMILY/export.py`: the graphs of a model."""

    def pieces(self, model: Any, recipe: Any) -> Any: ...


class OutputsModule(Protocol):
    """`ROOM/FAMILY/outputs.py`: what a run makes of held-out samples, for outside judges."""

    def outputs(self, task: Any) -> "Outputs": ...


class DataModule(Protocol):
    """`ROOM/data.py`: data from a folder, and built-in data."""

    Folder: Any
    """The reader of a folder (media.splits.InFolder), with its suffixes and its Config."""

    def check(self, folder: Path | str) -> Iterator[tuple[Path, str | None]]:
        """Each file with its problem, or None."""
        ...


@dataclass(frozen=True)
class Family:
    """One model with all that belongs to it. Its modules have agreed names and are imported when
    asked for, because help must be instant."""

    room: str
    name: str

    def __str__(self) -> str:
        return f"{self.room}/{self.name}"

    @property
    def adopts(self) -> Sequence[str]:
        """Classes of other libraries whose folders the family loads: ADOPTS of config.py."""
        return getattr(self.module("config", "the recipe's class", "training"), "ADOPTS", ())

    @property
    def task(self) -> TaskModule:
        return self.module("task", "build(recipe)", "training")

    @property
    def sample(self) -> SampleModule:
        members = "EXAMPLE, Flags, example(recipe, run) and sample(trained, inputs, out, flags)"
        return self.module("sample", members, "sampling")

    @property
    def export(self) -> ExportModule:
        purpose = "export as a graph (--format safetensors holds all of it)"
        return self.module("export", "", purpose)

    @property
    def outputs(self) -> OutputsModule:
        return self.module("outputs", "", "outside judges")

    @property
    def serve(self) -> Any:
        """Optional: what `quintet serve` offers beyond its flags. ENDPOINTS, further endpoints, and
        SCRIPT, a part of the page."""
        return self.module("serve", "", "endpoints of its own")

    @property
    def model(self) -> Any:
        """The class that users know."""
        return self.module("model", "Model, the model's class", "loading a model").Model

    def module(self, name: str, members: str, purpose: str) -> Any:
        return _module(f"{self.room}.{self.name}", name, members, purpose)


@dataclass(frozen=True)
class Room:
    """One modality: what its families share."""

    name: str

    @property
    def recipes(self) -> dict[str, Callable[[], Recipe]]:
        """The public functions of recipes.py by name, in their order there."""
        module = importlib.import_module(f"quintet.{self.name}.recipes")
        own = [
            (name, function)
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if not name.startswith("_") and function.__module__ == module.__name__
        ]
        return dict(sorted(own, key=lambda each: each[1].__code__.co_firstlineno))

    @property
    def families(self) -> list[Family]:
        configs = (path for root in _roots() for path in (root / self.name).glob("*/config.py"))
        return [Family(self.name, path.parent.name) for path in sorted(configs)]

    @property
    def data(self) -> DataModule:
        return _module(self.name, "data", "Folder and check(folder)", "folders of data")

    @property
    def demo(self) -> "RoomDemo | None":
        """DEMO of demo.py, or None without that file."""
        has_demo = importlib.util.find_spec(f"quintet.{self.name}.demo") is not None
        return _module(self.name, "demo", "DEMO", "demo").DEMO if has_demo else None


def _module(place: str, name: str, members: str, purpose: str) -> Any:
    """`members` tell a contributor what is missing; without them a family may lack the module."""
    if importlib.util.find_spec(f"quintet.{place}.{name}") is None:
        folder = place.replace(".", "/")
        missing = f": quintet/{folder}/{name}.py is missing, with {members}" if members else ""
        raise RunError(f"{folder} does not support {purpose}{missing}")
    return importlib.import_module(f"quintet.{place}.{name}")


def _roots() -> list[Path]:
    return [Path(root) for root in importlib.import_module("quintet").__path__]


def rooms() -> list[str]:
    return list(_rooms_of(tuple(_roots())))


@lru_cache(maxsize=4)
def _rooms_of(roots: tuple[Path, ...]) -> list[str]:
    return sorted(path.parent.name for root in roots for path in root.glob("*/recipes.py"))


def names() -> list[str]:
    return [f"{room}/{name}" for room in rooms() for name in Room(room).recipes]


def recipe_function(name: str) -> Callable[[], Recipe]:
    room, _, short = name.partition("/")
    if re.fullmatch(r"\w+/\w+", name) and room in rooms() and short in Room(room).recipes:
        return Room(room).recipes[short]
    known = among(name, names())
    if room in rooms() and not short:
        known = f"{room} has {', '.join(f'{room}/{short}' for short in Room(room).recipes)}"
    raise RunError(f"there is no recipe '{name}'; {known} ({command('list')} explains all)")


def room_named(name: str) -> Room:
    if name not in rooms():
        raise RunError(f"there is no room '{name}'; {among(name, rooms())}")
    return Room(name)


def family_of(recipe: Recipe) -> Family:
    """The family whose config.py holds the class of a recipe."""
    _, room, name, _ = type(recipe).__module__.split(".")
    return Family(room, name)


def family_of_model(about: dict[str, Any], where: Path) -> Family:
    """The family that the config.json of an exported folder names."""
    room, _, name = str(about.get("model")).partition("/")
    family = Family(room, name)
    if room in rooms() and family in Room(room).families:
        return family
    raise RunError(
        f"{where}/config.json names a model that is not Quintet's: {about.get('model')!r}"
    )


def family_of_foreign(path: Path) -> Family:
    """The family that adopts the class of a folder of another library."""
    from quintet.shared.adopt.folder import class_in

    named = class_in(path)
    families = [family for room in rooms() for family in Room(room).families if family.adopts]
    for family in families:
        if named in family.adopts:
            return family
    known = "; ".join(f"{family}: {', '.join(family.adopts)}" for family in families)
    raise RunError(f"{path} holds the class {named}, which no family adopts ({known})")


def build(recipe: Recipe, run: Path | None = None, recorded_split: bool = True) -> "Task":
    """The task of a recipe; for an existing `run`, with the frozen stages and the split of its
    folder."""
    if run is not None:
        from quintet.engine.runs.frozen import resolved

        recipe = resolved(recipe, run, recorded_split)
    return family_of(recipe).task.build(recipe)


def recorded(about: dict[str, Any], where: Path) -> tuple[str, Any]:
    """Recipe name and settings of a run, from its config.json."""
    name = about.get("recipe")
    if "model" in about:
        raise RunError(f"{where} is an exported model, not a run; name the run that it came from")
    if not isinstance(name, str):
        raise RunError(
            f"{where} was started from Python with a custom model; "
            "resume it there: trainer.train(resume=True)"
        )
    kind = type(recipe_function(name)())
    try:
        return name, from_json(kind, about.get("settings"))
    except ConfigError as error:
        raise RunError(f"{where}/config.json: {error}") from None


def builtin_recipe(about: dict[str, Any]) -> dict[str, Any]:
    """What config.json of an export says of the recipe, so that it can be measured again: name and
    settings without paths. Empty unless the data is built in, which is the same everywhere."""
    name, settings = about.get("recipe"), about.get("settings") or {}
    if not isinstance(name, str) or settings.get("data") is not None:
        return {}
    recipe = from_json(type(recipe_function(name)()), settings)
    if family_of(recipe).adopts:
        return {}  # their config.json is a library's
    without = each_setting(recipe, lambda f, value: None if f.metadata.get("path") else value)
    return {"recipe": name, "settings": to_json(without)}


def recipe_of(about: dict[str, Any], where: Path) -> Any:
    """The recipe of a run, or that of an export which names it: with the frozen stages in its
    folder, and in fp32, which gives the same metrics on all machines."""
    if "model" not in about or "recipe" not in about:
        return recorded(about, where)[1]
    recipe = recorded({name: about.get(name) for name in ("recipe", "settings")}, where)[1]
    stages = {name: str(where / name) for name in recipe.stages}
    return dataclasses.replace(recipe, precision="fp32", **stages)


def trained(source: Path) -> "tuple[Family, Trained]":
    """A run or an exported folder to sample from, and its family."""
    from quintet.engine.models.hub import local
    from quintet.engine.runs.folder import RunFolder
    from quintet.shared.sampling import Trained

    source = local(source)
    folder = RunFolder.open(source)
    if "model" in folder.about:
        recipe = recipe_of(folder.about, folder.path) if "recipe" in folder.about else None
        return family_of_model(folder.about, folder.path), Trained(source, recipe, load)
    recipe = recorded(folder.about, folder.path)[1]
    return family_of(recipe), Trained(source, recipe, load)


def load(source: str | Path, step: int | Literal["best"] | None = None) -> Any:
    """A model ready to use, with averaged weights, from a run, an exported folder, or a folder of
    diffusers or transformers whose class a family adopts.

    `step` names a checkpoint of the run, as does a source `RUN@STEP` or `RUN@best`; the default is
    the newest one.
    """
    from quintet.engine.models.hub import local
    from quintet.engine.models.pretrained import weights_of
    from quintet.engine.part import load_strictly
    from quintet.engine.runs.folder import RunFolder, at_step
    from quintet.shared.adopt.folder import is_foreign

    path = at_step(local(source), step)
    if is_foreign(path):
        return family_of_foreign(path).model.from_pretrained(path)
    folder = RunFolder.open(path)
    if "model" in folder.about:
        return family_of_model(folder.about, folder.path).model.from_pretrained(folder.path)
    _, recipe = recorded(folder.about, folder.path)
    task = build(recipe, folder.path)
    network = task.parts[task.main].network
    load_strictly(network, weights_of(path, task.main), str(path))
    return network.eval()

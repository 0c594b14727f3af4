"""Room: one modality, found by its folder having recipes.py; there is no list to edit.

Names from files and the command line are looked up among what is there, never imported as given.
"""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from quintet.engine.config import ConfigError, Recipe, from_json
from quintet.engine.errors import RunError

if TYPE_CHECKING:
    from quintet.engine.task import Task
    from quintet.shared.demo import Stage
    from quintet.shared.outputs import Outputs


class SampleModule(Protocol):
    """`ROOM/sample.py`: what `quintet sample` does for a run of the room. Imports no torch."""

    EXAMPLE: str
    """Arguments after the run, for the help; files in it are those of a user."""
    Flags: type
    """A dataclass of plain values, one sentence under each field."""

    def example(self, recipe: Any, run: Path) -> list[str]:
        """Arguments that work for a run just trained, without files of a user; empty if none do."""
        ...

    def sample(self, run: Path, inputs: Sequence[Path], out: Path, flags: Any) -> list[Path]: ...


class DataModule(Protocol):
    """`ROOM/data.py`: data from a folder, and built-in data."""

    Folder: Any
    """The reader of a folder (media.splits.InFolder), with its suffixes and its Config."""

    def check(self, folder: Path) -> Iterator[tuple[Path, str | None]]:
        """Each file with its problem, or None."""
        ...


class TaskModule(Protocol):
    """`ROOM/task.py`."""

    def build(self, recipe: Any) -> "Task": ...


class ExportModule(Protocol):
    """`ROOM/export.py`: the graphs that leave the room."""

    def pieces(self, model: Any, recipe: Any) -> Any: ...


class OutputsModule(Protocol):
    """`ROOM/outputs.py`: what a run makes of held-out samples, for outside judges."""

    def outputs(self, task: Any) -> "Outputs": ...


@dataclass(frozen=True)
class Room:
    """One modality: a folder of the package with recipes.py. What else it offers is in modules of
    agreed names, imported when asked for, because help must be instant."""

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
    def task(self) -> TaskModule:
        return self._module("task", "build(recipe)", "training")

    @property
    def data(self) -> DataModule:
        return self._module("data", "Folder and check(folder)", "folders of data")

    @property
    def sample(self) -> SampleModule:
        return self._module(
            "sample",
            "EXAMPLE, Flags, example(recipe, run) and sample(run, inputs, out, flags)",
            "sample",
        )

    @property
    def export(self) -> ExportModule:
        return self._module("export", "pieces(model, recipe)", "export --format")

    @property
    def outputs(self) -> OutputsModule:
        return self._module("outputs", "outputs(task)", "evaluate --judges")

    @property
    def transcripts(self) -> Any:
        return self._module("transcripts", "doubtful(run, folder) and lines(verdict)", "--aligner")

    @property
    def model(self) -> Any:
        return self._module("model", "the model's class", "loading an exported model")

    @property
    def stages(self) -> "Sequence[Stage]":
        """Stages of the demo: STAGES of demo.py, or none without that file."""
        return self._module("demo", "STAGES", "demo").STAGES if self._has("demo") else ()

    def _has(self, name: str) -> bool:
        return importlib.util.find_spec(f"quintet.{self.name}.{name}") is not None

    def _module(self, name: str, members: str, purpose: str) -> Any:
        if not self._has(name):
            raise RunError(
                f"the room {self.name} has no quintet/{self.name}/{name}.py; {purpose} needs it, "
                f"with {members}"
            )
        return importlib.import_module(f"quintet.{self.name}.{name}")


def rooms() -> list[str]:
    import quintet

    recipes = (path for root in quintet.__path__ for path in Path(root).glob("*/recipes.py"))
    return sorted(path.parent.name for path in recipes)


def recipes(room: str) -> dict[str, Callable[[], Recipe]]:
    return Room(room).recipes


def names() -> list[str]:
    return [f"{room}/{name}" for room in rooms() for name in recipes(room)]


def recipe_function(name: str) -> Callable[[], Recipe]:
    room, _, short = name.partition("/")
    if re.fullmatch(r"\w+/\w+", name) and room in rooms() and short in recipes(room):
        return recipes(room)[short]
    raise RunError(f"there is no recipe '{name}'; 'quintet list' shows them: {', '.join(names())}")


def room_of(name: str) -> Room:
    """The room of a recipe."""
    recipe_function(name)
    return Room(name.partition("/")[0])


def room_named(name: str) -> Room:
    if name not in rooms():
        raise RunError(f"there is no room '{name}'; there are {', '.join(rooms())}")
    return Room(name)


def build(
    name: str, recipe: Recipe, run: Path | None = None, recorded_split: bool = True
) -> "Task":
    """The task of a recipe; for an existing `run`, with the frozen stages and the split of its
    folder."""
    if run is not None:
        from quintet.engine.runs.frozen import resolved

        recipe = resolved(recipe, run, recorded_split)
    return room_of(name).task.build(recipe)


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


def load(source: str | Path, step: int | Literal["best"] | None = None) -> Any:
    """A model ready to use, with averaged weights, from a run, an exported folder, or a folder of
    an autoencoder of diffusers or transformers, of a ClapModel, or of a CLIP.

    `step` names a checkpoint of the run, as does a source `RUN@STEP` or `RUN@best`; the default is
    the newest one.
    """
    from quintet.engine.models.pretrained import weights_of
    from quintet.engine.part import load_strictly
    from quintet.engine.runs.folder import RunFolder, at_step
    from quintet.shared.adopt.folder import is_foreign

    path = at_step(Path(source), step)
    if is_foreign(path):
        return adopted(path)
    folder = RunFolder.open(path)
    if "model" in folder.about:
        return model_class(folder.about, folder.path).from_pretrained(folder.path)
    name, recipe = recorded(folder.about, folder.path)
    task = build(name, recipe, folder.path)
    network = task.parts[task.main].network
    load_strictly(network, weights_of(path, task.main), str(path))
    return network.eval()


def adopted(path: Path) -> Any:
    """A model of another library, in the room of its medium."""
    from quintet.image.adopt.model import AdoptedImages
    from quintet.image.clip.model import AdoptedClip
    from quintet.music.adopt.model import AdoptedCodec
    from quintet.music.clap.model import AdoptedClap
    from quintet.shared.adopt import folder
    from quintet.shared.adopt.config import CODECS, CONTRASTIVE
    from quintet.shared.adopt.model import takes_clips
    from quintet.video.adopt.model import AdoptedClips

    named = folder.class_in(path)
    if named in CONTRASTIVE:
        return (AdoptedClap if named == "ClapModel" else AdoptedClip).from_pretrained(path)
    config, network = folder.load(path)
    if config.class_name in CODECS:
        return AdoptedCodec(config, network).eval()
    return (AdoptedClips if takes_clips(network) else AdoptedImages)(config, network).eval()


def model_class(about: dict[str, Any], where: Path) -> Any:
    """The class that an exported folder names, if a room has it."""
    from quintet.engine.models.pretrained import Pretrained

    room, _, name = str(about.get("model")).partition("/")
    if room in rooms() and re.fullmatch(r"\w+", name):
        kind = getattr(Room(room).model, name, None)
        if isinstance(kind, type) and issubclass(kind, Pretrained):
            return kind
    raise RunError(
        f"{where}/config.json names a model that is not Quintet's: {about.get('model')!r}"
    )

"""What a run was trained on, and how much of other data is among it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from quintet import rooms
from quintet.engine.errors import RunError
from quintet.engine.settings import settings_of

if TYPE_CHECKING:
    from quintet.media.held_out import Contents


class TrainedOn(NamedTuple):
    """What is known of a model's training data; None for what is not."""

    data: str | None = None
    """Its folder; "built-in data" without one."""
    files: int | None = None
    """Of the files at hand, how many are among it."""


def contents_of_run(
    run: Path, recipe: Any, split: Literal["train", "valid"] = "train"
) -> "Contents | None":
    """What tells the samples of a run apart: by its record where that has digests, otherwise by its
    data. None if it is unknown: Python data sets, and files without digests that are gone."""
    from quintet.engine.data import record
    from quintet.media.held_out import Contents, contents_of, recorded_contents

    if recipe.data is None:
        return Contents(0)  # built in
    if recipe.data.startswith("python:"):
        return None
    root = value_of(recipe, "valid_folder") if split == "valid" else None
    try:
        files = record.read(run / record.NAME)[split].files
        recorded = recorded_contents(root or recipe.data, files)
        return recorded or contents_of(rooms.build(recipe, run).data(split))
    except (OSError, ValueError, RunError):
        return None


def value_of(recipe: Any, name: str) -> Any:
    """The value of a data setting, whatever its group is named; None if there is none."""
    ending = f".{name}"
    return next((s.default for s in settings_of(recipe) if s.name.endswith(ending)), None)


def trained_on(model: Path, files: Sequence[Path]) -> TrainedOn:
    """How many of the files a model was trained on, if it is a run; exports and models of other
    libraries do not say."""
    from quintet.engine.runs.folder import RunFolder
    from quintet.media.held_out import path_contents, shared

    try:
        folder = RunFolder.open(model)
        _, recipe = rooms.recorded(folder.about, folder.path)
    except RunError:
        return TrainedOn()
    trained = contents_of_run(folder.path, recipe)
    count = None if trained is None else int(shared(path_contents(files), trained).sum())
    return TrainedOn("built-in data" if recipe.data is None else recipe.data, count)

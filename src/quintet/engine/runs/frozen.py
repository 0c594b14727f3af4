"""Frozen stages: models that a run is built on, copied once into RUN/frozen/NAME.

A recipe says in `stages` which of its settings name such a model, and which recipe trains one. The
copy holds averaged weights and configuration alone; its digest is in config.json. From then on the
run depends on its own folder and on nothing else.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quintet.engine.config import Recipe
from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import WEIGHTS, Pretrained
from quintet.engine.runs.folder import RunFolder, read_json
from quintet.files import atomic_folder, digest_of, remove_partial


def keep(
    folder: RunFolder,
    recipe: Recipe,
    live: Mapping[str, Pretrained],
    load: Callable[[str], Pretrained] | None,
) -> None:
    """Copy each stage that is not there yet; check those that are. `live` holds Python's own."""
    digests = dict(folder.about.get("frozen", {}))
    for name, maker in recipe.stages.items():
        place = folder.frozen / name
        if name not in digests:
            source = getattr(recipe, name)
            if source is None:
                word = name.replace("_", "-")
                raise RunError(
                    f"this recipe is built on a trained {name}: give --{word} RUN, "
                    f"a run of 'quintet train {maker}' or what 'quintet export' made of it"
                )
            model = live.get(name)
            if model is None and load is not None:
                model = load(source)
            if model is None:
                raise RunError(f"{name} is {source!r}, which cannot be loaded here; pass the model")
            _copy(model, place)
            digests[name] = digest(place)
    if digests:
        check(folder.path, digests)
        folder.write_config({**folder.about, "frozen": digests})


def _copy(model: Pretrained, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    remove_partial(path.parent)  # of a start that was killed
    with atomic_folder(path, replace=True) as partial:
        model.save_pretrained(partial)


def digest(path: Path) -> str:
    """SHA-256 of weights and configuration; the version that wrote them does not count."""
    config = read_json(path / "config.json").get("config")
    text = json.dumps(config, sort_keys=True) + digest_of(path / WEIGHTS)
    return hashlib.sha256(text.encode()).hexdigest()


def check(run: Path, digests: Mapping[str, Any]) -> None:
    for name, wanted in digests.items():
        place = run / "frozen" / name
        if not (place / WEIGHTS).is_file() or digest(place) != wanted:
            raise RunError(
                f"{place} is missing or is not what the run was built on; restore it from a copy"
            )


def resolved(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with its stages where the run keeps them."""
    if not recipe.stages:
        return recipe
    check(run, read_json(run / "config.json").get("frozen", {}))
    return dataclasses.replace(recipe, **{n: str(run / "frozen" / n) for n in recipe.stages})

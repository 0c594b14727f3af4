"""Frozen stages: trained models that a run depends on, copied once into RUN/frozen/NAME.

`stages` of a recipe maps the settings that name such a model to the recipe that trains it, or to
words for what to give. The copy holds EMA weights and configuration; its digest is in config.json.
From then on the run depends on nothing outside its folder.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quintet.engine.config import Recipe
from quintet.engine.data import record
from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import WEIGHTS, Pretrained
from quintet.engine.runs.folder import RunFolder, read_json
from quintet.files import atomic_folder, digest_of, remove_partial
from quintet.suggest import command


def keep(
    folder: RunFolder,
    recipe: Recipe,
    live: Mapping[str, Pretrained],
    load: Callable[[str], Pretrained] | None,
) -> dict[str, Any]:
    """Copy missing stages and check existing ones; returns config.json. `live` holds models passed
    from Python."""
    digests = dict(folder.about.get("frozen", {}))
    for name, trained_by in recipe.stages.items():
        path = folder.frozen / name
        if name not in digests:
            source = getattr(recipe, name)
            if source is None:
                raise RunError(f"this recipe needs a trained {name}: {_remedy(name, trained_by)}")
            model = live.get(name)
            if model is None:
                model = recipe.built_in_stage(name)
            if model is None and load is not None:
                model = load(source)
                # Here, where the folder that was given is known; the task knows only the copy.
                families = recipe.stage_families.get(name, (trained_by,))
                if _is_recipe(trained_by) and model.label() not in families:
                    raise RunError(f"{source} holds {model.label()}: {_remedy(name, trained_by)}")
            if model is None:
                raise RunError(f"{name} is {source!r}, which cannot be loaded here; pass the model")
            path.parent.mkdir(exist_ok=True)
            remove_partial(path.parent)  # of a killed start
            with atomic_folder(path, replace=True) as partial:
                model.save_stage(partial)
            digests[name] = digest(path)
    if digests:
        check(folder.path, digests)
        folder.write_config({**folder.about, "frozen": digests})
    return folder.about


def _is_recipe(trained_by: str) -> bool:
    return "/" in trained_by.split()[0]


def _remedy(name: str, trained_by: str) -> str:
    wanted = trained_by
    if _is_recipe(trained_by):
        wanted = f"a run of '{command('train', trained_by)}' or its export"
    return f"set --{name.replace('_', '-')} to {wanted}"


def digest(path: Path) -> str:
    """SHA-256 of weights and configuration, independent of the version that wrote them."""
    config = read_json(path / "config.json").get("config")
    text = json.dumps(config, sort_keys=True) + digest_of(path / WEIGHTS)
    return hashlib.sha256(text.encode()).hexdigest()


def check(run: Path, digests: Mapping[str, Any]) -> None:
    for name, recorded in digests.items():
        path = run / "frozen" / name
        if not (path / WEIGHTS).is_file() or digest(path) != recorded:
            raise RunError(f"{path} is missing or has changed; restore it from a copy")


def resolved(recipe: Recipe, run: Path, recorded_split: bool = True) -> Recipe:
    """The recipe with its stages and its split set to those in the run folder."""
    recipe = record.resolved(recipe, run) if recorded_split else recipe
    if not recipe.stages:
        return recipe
    check(run, read_json(run / "config.json").get("frozen", {}))
    inside: dict[str, Any] = {name: str(run / "frozen" / name) for name in recipe.stages}
    return dataclasses.replace(recipe, **inside)

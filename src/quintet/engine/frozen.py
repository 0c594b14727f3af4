"""Frozen stages: models that a run is built on, copied once into RUN/frozen/NAME.

A recipe says in `stages` which of its settings name such a model, and which recipe trains one. The
copy holds averaged weights and configuration alone; its digest is in config.json. From then on the
run depends on its own folder and on nothing else.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quintet
from quintet.engine.config import Recipe
from quintet.engine.errors import RunError
from quintet.engine.folder import RunFolder, read_json
from quintet.engine.pretrained import WEIGHTS, Pretrained


def keep(folder: RunFolder, recipe: Recipe, live: Mapping[str, Pretrained]) -> None:
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
            _copy(live[name] if name in live else quintet.load(source), place)
            digests[name] = digest(place)
    if digests:
        check(folder.path, digests)
        folder.write_config({**folder.about, "frozen": digests})


def _copy(model: Pretrained, place: Path) -> None:
    aside = place.with_name(f".{place.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)  # of a start that was killed
    model.save_pretrained(aside)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(place)
    os.replace(aside, place)


def digest(place: Path) -> str:
    """Of weights and configuration; the version that wrote them does not count."""
    config = read_json(place / "config.json").get("config")
    found = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    with open(place / WEIGHTS, "rb") as file:
        while block := file.read(1 << 24):
            found.update(block)
    return found.hexdigest()


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

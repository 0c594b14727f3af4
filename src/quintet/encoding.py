"""Encode a data set by a trained tokenizer into shards, from which generators train."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from quintet import rooms
from quintet.engine.config import ConfigError, resolved, to_json
from quintet.engine.data.record import record_of
from quintet.engine.errors import RunError
from quintet.engine.runs.cache import arithmetic
from quintet.engine.runs.frozen import digest
from quintet.engine.settings import each_setting
from quintet.media.errors import BadFile
from quintet.shared.adopt.folder import is_foreign
from quintet.shared.code_cache import CachedCodes, Collate
from quintet.shared.config import DataConfig
from quintet.shared.encoded import prepare, write_shards
from quintet.shared.sampling import on_device
from quintet.urls import is_url


def encode(
    model: Any,
    data: str | Path,
    out: str | Path,
    *,
    recipe: str | None = None,
    size: tuple[int, int] | None = None,
    variants: int | None = None,
    shard_samples: int = 1024,
    workers: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    part: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Write the shards that `out` still lacks, and return the manifest.

    `model` is a tokenizer: a run, an export or a model. Samples are prepared as the `recipe` of a
    generator says, or as in training the tokenizer, with `variants` fixed augmentations of each.
    Several processes may write one folder: `part` is the number of this one and their count, by
    default those of torchrun.
    """
    for name, value in (("variants", variants), ("shard_samples", shard_samples)):
        if value is not None and value < 1:
            raise RunError(f"--{name.replace('_', '-')} is {value}; give 1 or more")
    if is_url(out):
        raise RunError(f"--out is {out}; give a folder here, and copy it when it is complete")
    named = isinstance(model, (str, Path))
    network = rooms.load(model) if named else model
    with tempfile.TemporaryDirectory() as stage:
        network.save_stage(Path(stage))
        weights = digest(Path(stage))
    asked = {"data": resolved(data), **({"variants": variants} if variants else {})}
    if named and not recipe:
        asked |= _data_settings(Path(model))
    made, codes, collate = _opened(network, weights, recipe, asked, size)
    gpu = int(os.environ.get("LOCAL_RANK", "0"))
    network = network.to(f"cuda:{gpu}" if on_device(device) == "cuda" else "cpu").eval()
    about = {
        "model": weights,
        "source": str(model) if named else type(model).__name__,
        "recipe": made,
        "stage": next(iter(rooms.recipe_function(made)().stages)),
        "data": record_of(codes).digest,
        "settings": to_json(getattr(codes.source, "source", codes.source).config),
        "what": codes.what,
        "samples": len(codes),
        "variants": codes.variants,
        "shard_samples": shard_samples,
        "shards": -(-len(codes) // shard_samples),
        "arithmetic": arithmetic(next(network.parameters()).device),
    }
    prepare(Path(out), about)
    rank, count = part or (int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    with _one_thread():
        write_shards(codes, network, collate, Path(out), about, (rank, count), workers)
    return about


def _data_settings(model: Path) -> dict[str, Any]:
    """How the samples of a run, or of an export that names its recipe, were prepared."""
    if is_foreign(model):
        return {}
    recipe = rooms.trained(model)[1].recipe
    own = {f.name: getattr(recipe, f.name) for f in fields(recipe)} if recipe else {}
    return {name: value for name, value in own.items() if isinstance(value, DataConfig)}


def _opened(
    network: Any, weights: str, name: str | None, asked: dict[str, Any], size: Any
) -> tuple[str, CachedCodes, Collate]:
    """Samples to encode as a generator takes them: of the recipe, or else the first that is trained
    over the codes of the model; and the name of that recipe."""
    room = (name or network.label()).partition("/")[0]
    names = [name] if name else [f"{room}/{n}" for n in rooms.room_named(room).recipes]
    why: object = "no generator of this room is trained over its codes"
    for each in names:
        recipe = rooms.recipe_function(each)()
        module: Any = rooms.family_of(recipe).task
        if "teacher" in recipe.stages or not hasattr(module, "to_encode"):
            continue
        others = {
            n for n, v in asked.items() if isinstance(v, DataConfig) and not alike(recipe, n, v)
        }
        recipe = replace(recipe, **{n: v for n, v in asked.items() if n not in others})
        if size is not None:
            recipe = each_setting(recipe, lambda f, value: size if f.name == "size" else value)
        try:
            return each, *module.to_encode(recipe, network, weights)
        except (TypeError, ValueError) as error:
            if isinstance(error, (BadFile, ConfigError)):
                raise
            why = error
    raise RunError(f"{name or network.label()} cannot be encoded for: {why}")


def alike(recipe: Any, name: str, value: Any) -> bool:
    """Whether a recipe has such settings of this name: those of a codec have no captions."""
    return type(getattr(recipe, name, None)) is type(value)


@contextmanager
def _one_thread() -> Generator[None]:
    """The last bits of a sum on a CPU may depend on how many threads share it."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)

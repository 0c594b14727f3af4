"""Ray itself, what runs in its tasks, and how many processes train."""

import importlib
from dataclasses import replace
from typing import Any

from quintet.engine.config import Recipe
from quintet.engine.errors import RunError


def connected() -> Any:
    """Ray, connected to the cluster of RAY_ADDRESS or of this machine."""
    try:
        import ray

        importlib.import_module("ray.train.torch")  # not loaded until it is named
    except ImportError as error:
        raise ImportError("Ray needs an extra: pip install 'quintet[ray]'") from error
    if not ray.is_initialized():
        ray.init(logging_config=ray.LoggingConfig(log_level="ERROR"))
    return ray


def has_gpu(ray: Any) -> bool:
    return ray.cluster_resources().get("GPU", 0) >= 1


def placed(model: str, part: tuple[int, int], places: dict[str, Any]) -> dict[str, Any]:
    from quintet.encoding import encode

    return encode(model, places.pop("data"), places.pop("out"), part=part, **places)


def seats(recipe: Recipe, wanted: int, size: int) -> tuple[int, Recipe]:
    """How many of the processes train: the most that divide the global batch that is `wanted`. And
    the recipe with the micro-batches that make it."""
    single = replace(recipe, accumulate=1)
    for count in range(size, 0, -1):
        if wanted % single.global_batch(count) == 0:
            return count, replace(recipe, accumulate=wanted // single.global_batch(count))
    raise RunError(f"the global batch is {wanted}; batch_size {recipe.batch_size} must divide it")

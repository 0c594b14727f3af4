"""Training and encoding on a Ray cluster.

Ray starts the processes, also after a node is lost, and on as many nodes as there are; runs resume
from their own folder, exactly. Imports Ray when it is used.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintet import rooms
from quintet.engine.config import Recipe, resolved, to_json
from quintet.engine.errors import RunError
from quintet.engine.settings import keywords_of, updated
from quintet.ray.cluster import connected, has_gpu, placed
from quintet.suggest import among
from quintet.urls import is_url

RESTARTS = 10
"""Deaths of processes or nodes before Ray gives up."""


def train(
    recipe: str,
    data: str | Path | None = None,
    *,
    run: str | Path,
    workers: int | tuple[int, int] = 1,
    readers: int | None = None,
    gpu: bool | None = None,
    cpus: int = 1,
    restarts: int = RESTARTS,
    storage: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Start or resume a run, and return its last metrics, which Ray is told as well.

    `workers` is the number of processes or, as a pair, the fewest and the most: the global batch is
    always that of the most. `run` is a folder that all nodes share, or an address in object
    storage; `storage` is where Ray keeps notes of its own, by default beside the run. Each process
    has a GPU, if there is one, `cpus` cores and `readers` of data (the recipe's `workers`). Other
    keywords are settings of the recipe, as are `settings` by dotted names.
    """
    from quintet.engine.trainer import settings_from

    default = rooms.recipe_function(recipe)()
    for name in keywords.keys() - keywords_of(default):
        raise RunError(f"{recipe} has no setting {name}; {among(name, [*keywords_of(default)])}")
    keywords |= {"data": data, **({} if readers is None else {"workers": readers})}
    changes = {**settings_from(default, keywords), **(settings or {})}
    asked: Recipe = updated(default, changes)
    return fit(recipe, asked, str(run), workers, gpu, cpus, restarts, storage)


def fit(
    name: str,
    recipe: Recipe,
    run: str,
    workers: int | tuple[int, int],
    gpu: bool | None,
    cpus: int,
    restarts: int,
    storage: str | None,
) -> dict[str, Any]:
    fewest, most = workers if isinstance(workers, tuple) else (workers, workers)
    if not 1 <= fewest <= most:
        raise RunError(f"workers is {workers}; give a number above 0, or the fewest and the most")
    if cpus < 1 or restarts < 0:
        raise RunError(f"cpus is {cpus} and restarts is {restarts}; give 1 or more, and 0 or more")
    ray = connected()
    from quintet.ray.worker import work

    use_gpu = recipe.device != "cpu" and (has_gpu(ray) if gpu is None else gpu)
    place = run if is_url(run) else resolved(run)
    trainer = ray.train.torch.TorchTrainer(
        work,
        train_loop_config={"name": name, "recipe": to_json(recipe), "run": place, "most": most},
        torch_config=ray.train.torch.TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=most if fewest == most else (fewest, most),
            use_gpu=use_gpu,
            resources_per_worker={"CPU": cpus, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=ray.train.RunConfig(
            name=f"{Path(run).name}-{time.time_ns():x}",
            storage_path=storage or f"{str(place).rpartition('/')[0]}/.ray",
            failure_config=ray.train.FailureConfig(max_failures=restarts),
            logging_config=ray.train.LoggingConfig(log_level="WARNING"),
        ),
    )
    try:
        metrics = trainer.fit().return_value
    except ray.train.TrainingFailedError as error:
        reason = (str(error).strip().splitlines() or ["no reason is known"])[-1]
        resume = "the same call resumes it"
        raise RunError(f"{run} failed more than {restarts} times: {reason}; {resume}") from error
    if "error" in metrics:
        raise RunError(metrics["error"])
    return metrics


def encode(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    readers: int = 0,
    gpu: bool | None = None,
    cpus: int = 1,
    restarts: int = RESTARTS,
    **settings: Any,
) -> dict[str, Any]:
    """`quintet.encode` by several tasks of Ray, into a folder that all nodes share. A task whose
    node is lost is repeated; shards that are there are not encoded again."""
    if workers < 1:
        raise RunError(f"workers is {workers}; give 1 or more")
    settings["workers"] = readers
    ray = connected()
    use_gpu = settings.get("device") != "cpu" and (has_gpu(ray) if gpu is None else gpu)
    task = ray.remote(num_cpus=cpus, num_gpus=int(use_gpu), max_retries=restarts)(placed)
    places = {"data": resolved(data), "out": resolved(out), **settings}
    parts = [task.remote(resolved_model(model), (n, workers), places) for n in range(workers)]
    try:
        return ray.get(parts)[0]
    except ray.exceptions.RayTaskError as error:
        for part in parts:
            ray.cancel(part, force=True)
        raise (error.cause if isinstance(error.cause, Exception) else error) from None


def resolved_model(model: str | Path) -> str:
    """A path of a run from any folder; names of the package and of the Hub as they are."""
    return str(resolved(model)) if Path(str(model).partition("@")[0]).exists() else str(model)

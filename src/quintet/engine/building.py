"""What a run is made of, out of a task and a recipe; what cannot work is refused here."""

import torch
from torch.nn.parameter import is_lazy

from quintet.engine.config import Recipe
from quintet.engine.data.plans import CountPlan, order_of
from quintet.engine.data.source import as_source
from quintet.engine.data.stream import Fixed, Stream
from quintet.engine.errors import RunError
from quintet.engine.machine.regions import require_regions
from quintet.engine.machine.world import World
from quintet.engine.optim import trainable
from quintet.engine.part import LivePart, Parts
from quintet.engine.runs import checkpoint
from quintet.engine.task import Part, Task


def parts(task: Task, recipe: Recipe, world: World) -> Parts:
    for name, part in task.parts.items():
        check_weights(name, part)
    check_owners(task)
    if world.recomputes:
        require_regions(part.network for part in task.parts.values() if part.optimizer)
    length = recipe.schedule_steps or recipe.steps
    live: dict[str, LivePart] = {}
    frozen: dict[str, torch.nn.Module] = {}
    for name, part in task.parts.items():
        whens = [update.when for update in task.updates if update.part == name]
        if part.optimizer is None:
            frozen[name] = world.place_module(part.network).eval().requires_grad_(False)
        elif not whens:
            raise RunError(f"part '{name}' has an optimizer but no update; give it one")
        else:
            start = min(when.start for when in whens)
            live[name] = LivePart(name, part, world, start, max(1, length - start))
    return Parts(live, frozen)


def check_weights(name: str, part: Part) -> None:
    """Refuse weights without values, and types that a checkpoint cannot hold."""
    modules = [part.network, *([part.extra_state] if part.extra_state else [])]
    named = [pair for m in modules for pair in (*m.named_parameters(), *m.named_buffers())]
    lazy = [key for key, tensor in named if is_lazy(tensor)]
    if lazy:
        raise RunError(
            f"'{name}' has {len(lazy)} uninitialised parameters, {lazy[0]} is the first: call the "
            "model once with a batch before training, or build its lazy layers with their sizes"
        )
    empty = [key for key, tensor in named if tensor.is_meta]
    if empty:
        raise RunError(
            f"'{name}' has {len(empty)} parameters without values (device meta), {empty[0]} is the "
            "first: build the model on a real device"
        )
    if part.optimizer is None:
        return  # frozen, and never saved
    saved = [pair for m in modules for pair in m.state_dict().items()]
    for key, tensor in saved:
        if isinstance(tensor, torch.Tensor) and tensor.dtype not in checkpoint.TYPES:
            raise RunError(
                f"'{name}' holds {key} of type {tensor.dtype}, which a checkpoint cannot hold: "
                "store it as real numbers (torch.view_as_real), or as a buffer with "
                "persistent=False"
            )


def check_owners(task: Task) -> None:
    """Every trainable parameter belongs to exactly one part."""
    owner: dict[int, str] = {}
    shared: list[str] = []
    counts: dict[str, int] = {}
    for name, part in task.parts.items():
        parameters = trainable(part.network) if part.optimizer else {}
        counts[name] = len(parameters)
        for parameter_name, parameter in parameters.items():
            if id(parameter) in owner:
                shared.append(f"{name}.{parameter_name} (also in {owner[id(parameter)]})")
            owner[id(parameter)] = name
    if shared:
        raise RunError(
            f"{len(shared)} parameters belong to two parts: {', '.join(shared[:3])}; "
            f"parameters per part: {counts}"
        )


def stream(task: Task, recipe: Recipe, world: World) -> Stream:
    source = as_source(task.data("train"))
    size, batch = len(source), recipe.global_batch(world.size)
    plan = task.plan(source)
    if plan is None and size < batch:
        raise RunError(
            f"the data has {size} samples, but one global batch takes {batch} "
            f"(batch_size {recipe.batch_size} x accumulate {recipe.accumulate} x "
            f"{world.size} processes); lower --batch-size or add data"
        )
    order = order_of(source, recipe.seed)
    return Stream(
        source,
        task.collate,
        plan or CountPlan(size, recipe.seed, recipe.batch_size, order),
        world,
        seed=recipe.seed,
        accumulate=recipe.accumulate,
        workers=recipe.workers,
        timeout=recipe.data_timeout,
    )


def held_out(task: Task, recipe: Recipe, world: World) -> Fixed | None:
    source = task.data("valid")
    if source is None or len(source) == 0:
        return None
    size, workers = recipe.evaluation_batch, recipe.workers
    return Fixed(as_source(source), task.collate, size, world, workers, recipe.data_timeout)

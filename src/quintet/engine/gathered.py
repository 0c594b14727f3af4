"""Evaluation of sharded parts: whole weights are gathered once for each side, not for each call."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from quintet.engine import evaluate, sharding
from quintet.engine.part import LivePart
from quintet.engine.stream import Fixed
from quintet.engine.task import Batch, Task
from quintet.engine.world import World


def measure(
    parts: Sequence[LivePart],
    task: Task,
    nets: Mapping[str, Any],
    fixed: Fixed,
    world: World,
    show: Callable[[Batch], None] | None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics under averaged and under live weights.

    Processes have different numbers of batches, the main one makes exhibits, and networks are
    called by other methods than forward: with shards each of these would wait for ever.
    """
    side = [partial(evaluate.at_rest, parts, False)]
    networks = [part.module for part in parts]
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.averaged())
        stack.enter_context(sharding.gathered(networks))
        (averaged,) = evaluate.measure_under(side, task, nets, fixed, world, show)
    with sharding.gathered(networks):
        (live,) = evaluate.measure_under(side, task, nets, fixed, world)
    return averaged, live

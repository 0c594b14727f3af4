"""One optimizer step of one part: the same for every medium."""

from collections.abc import Sequence

from quintet.engine.meters import Meters
from quintet.engine.part import Parts
from quintet.engine.task import Batch, StepContext, Update


def apply(
    update: Update, parts: Parts, batches: Sequence[Batch], context: StepContext, meters: Meters
) -> None:
    live = parts[update.part]
    world = live.world
    context.update_index += 1
    losses = update.losses(parts.only(live), batches, context)
    for index, batch in enumerate(batches):
        with world.no_sync_but_last(live.wrapped, index, len(batches)), context.keyed(index):
            with world.autocast():
                loss, metrics = next(losses)
            live.backward(loss)
        meters.add(context.step, update.part, metrics, batch.size / context.samples)
    meters.add(context.step, update.part, live.step(context), 1 / world.size)

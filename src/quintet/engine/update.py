"""One optimizer step of one part: the same for every medium."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintet.engine.task import Batch, StepContext, Update

if TYPE_CHECKING:
    from quintet.engine.run import Run


def apply(run: "Run", update: Update, batches: Sequence[Batch], context: StepContext) -> None:
    live = run.parts[update.part]
    context.update_index += 1
    nets = run.only(live)
    losses = update.losses(nets, batches, context)
    for index, batch in enumerate(batches):
        with run.world.no_sync_but_last(live.wrapped, index, len(batches)), context.keyed(index):
            with run.world.autocast():
                loss, metrics = next(losses)
            live.backward(loss)
        run.meters.add(context.step, update.part, metrics, batch.size / context.samples)
    run.meters.add(context.step, update.part, live.step(context), 1 / run.world.size)

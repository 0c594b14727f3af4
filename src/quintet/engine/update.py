"""One optimiser step of one part: the same for every medium."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintet.engine.task import At, Batch, Update

if TYPE_CHECKING:
    from quintet.engine.run import Run


def apply(run: "Run", update: Update, batches: Sequence[Batch], at: At) -> None:
    live = run.parts[update.part]
    at.turn += 1
    nets = run.only(live)
    losses = update.losses(nets, batches, at)
    for index, batch in enumerate(batches):
        with run.world.no_sync_but_last(live.wrapped, index, len(batches)), at.keyed(index):
            with run.world.autocast():
                loss, metrics = next(losses)
            live.backward(loss)
        run.meters.add(at.step, update.part, metrics, batch.size / at.samples)
    run.meters.add(at.step, update.part, live.step(at), 1 / run.world.size)

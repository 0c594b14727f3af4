"""The loop. Everything else in the engine exists so that this reads as prose."""

from collections.abc import Sequence
from functools import partial

import torch

from quintet.engine.health import nan_in_data
from quintet.engine.run import Run
from quintet.engine.task import Batch, StepContext
from quintet.engine.update import apply


def train(run: Run) -> None:
    """Take the run from wherever it stands to its last step, or to where it is asked to stop."""
    run.restore_latest()
    while run.step < run.recipe.steps:
        take_step(run)
        run.compiler.decide(run.step)
        if run.due(run.recipe.log_every):
            run.report()
        if run.due(run.recipe.evaluate_every):
            run.evaluate()
        if run.due(run.recipe.save_every) or run.saver.is_best:
            run.save()
        run.answer_requests()
        run.go_back_if_failed()
        run.stop_if_asked()
    run.finish()


def take_updates(run: Run, batches: Sequence[Batch], context: StepContext) -> None:
    start = torch.zeros((), device=run.world.device) + nan_in_data(batches)
    for part in run.parts.values():  # NaN where the data has one: the guard finds it
        part.loss = start
    for update in run.task.updates:
        if context.due(update.when):
            apply(update, run.parts, batches, context, run.meters)


def take_step(run: Run) -> None:
    batches = run.stream.take(run.recipe.accumulate)
    context = run.begin(batches)
    with run.compiler.step(run.step):
        if run.capture is None:
            take_updates(run, batches, context)
        else:
            run.capture.take(batches, context, partial(take_updates, run))
    run.step += 1  # steps of the run, never calls of an optimizer

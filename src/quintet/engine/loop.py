"""The loop. Everything else in the engine exists so that this reads as prose."""

from typing import TYPE_CHECKING

from quintet.engine.update import apply

if TYPE_CHECKING:
    from quintet.engine.run import Run


def train(run: "Run") -> None:
    """Take the run from wherever it stands to its last step, or to where it is asked to stop."""
    run.restore_latest()
    while run.step < run.recipe.steps:
        take_step(run)
        if run.due(run.recipe.log):
            run.report()
        if run.due(run.recipe.evaluate):
            run.evaluate()
        if run.due(run.recipe.save) or run.saver.is_best:
            run.save()
        run.go_back_if_failed()
        run.stop_if_asked()
    run.finish()


def take_step(run: "Run") -> None:
    batches = run.stream.take(run.recipe.accumulate)
    context = run.begin(batches)
    for update in run.task.updates:
        if update.when.due(run.step):
            apply(run, update, batches, context)
    run.step += 1  # steps of the run, never calls of an optimiser

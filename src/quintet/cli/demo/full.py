"""`quintet demo --full`: train the tiny recipes of all rooms in turn."""

from collections.abc import Sequence
from pathlib import Path

from quintet import rooms
from quintet.cli.common import recorded
from quintet.cli.demo.display import Display, StageSink
from quintet.cli.demo.gallery import Shown, figure_of
from quintet.cli.demo.page import Page, next_steps, sample_command, showing
from quintet.cli.demo.stages import all_stages, fitting_settings
from quintet.cli.train import train_run
from quintet.engine.errors import RunError
from quintet.engine.runs.folder import RunFolder, read_lines
from quintet.files import marking_outputs
from quintet.shared.demo import Metrics, Sample, Stage
from quintet.suggest import command

LEAD = (
    "Small models trained from nothing by one engine on the CPU of this machine, on built-in "
    "synthetic data. Each number is measured on held-out data and stands beside its reference. The "
    "recipes themselves train longer, with better results."
)


def full_demo(folder: Path, steps: int | None) -> None:
    stages = all_stages()
    rows = {stage.folder: Shown(stage.row, note="Not trained yet.") for stage in stages}
    lead = (
        f"{LEAD} {steps} steps train nothing: this only tests the installation." if steps else LEAD
    )
    page = Page(folder / "index.html", lead, list(rows.values()), "Training.")
    with showing(page), Display(stages, steps) as display:
        for number, stage in enumerate(stages, 1):
            page.write(f"Training: {stage.row.title}, {number} of {len(stages)}.")
            train(stage, steps, folder, display)
            fill(rows[stage.folder], stage, folder)
        page.sections["next"] = next_steps(
            {row.row.title: row.command for row in rows.values() if row.command}
        )
    print_summary(rows, page.path)


def train(stage: Stage, steps: int | None, demo: Path, display: Display) -> None:
    run, reduced = demo / stage.folder, None
    # Recorded settings win: the demo may have been moved, or started by an earlier version.
    if (run / "config.json").exists():
        settings = recorded(run)[1]
    else:
        settings, reduced = fitting_settings(stage, demo, steps)
    step = max(RunFolder(run).steps(), default=0)
    if step >= settings.steps:
        display.skip(stage, settings.steps, summary(stage, run))
        return
    display.start(stage, settings.steps, step)
    if reduced:
        display.say(f"{stage.row.title}: {reduced}")
    sinks = [StageSink(display, stage)]
    try:
        train_run(stage.recipe, settings, run, "resume_or_new", more=sinks, progress=False)
    except RunError as error:
        raise RunError(f"{stage.recipe}: {error}") from None
    display.end(stage, summary(stage, run))


# -- results ------------------------------------------------------------------------------------


def metrics_of(run: Path) -> Metrics:
    """The last validation metrics."""
    path = RunFolder(run).metrics
    records = read_lines(path) if path.exists() else []
    evaluations = [r for r in records if any(name.startswith("val/") for name in r)]
    last = evaluations[-1] if evaluations else {}
    return {n.removeprefix("val/"): v for n, v in last.items() if n.startswith("val/")}


def summary(stage: Stage, run: Path) -> str:
    recipe = recorded(run)[1]
    figure = figure_of(stage.row, metrics_of(run), recipe)
    fewer = f"; {recipe.steps} of {stage.steps} steps" if recipe.steps < stage.steps else ""
    return f"{figure or 'some metrics are missing or not finite'}{fewer}"


def fill(shown: Shown, stage: Stage, demo: Path) -> None:
    """Number and samples of a trained stage."""
    run, recipe = demo / stage.folder, recorded(demo / stage.folder)[1]
    shown.figure = figure_of(stage.row, metrics_of(run), recipe)
    shown.samples = draw(stage, demo) or newest_exhibit(run)
    shown.report = f"{stage.folder}/report.html"
    shown.command = sample_command(stage.row, run)
    shown.facts = {"recipe": stage.recipe, "steps": f"{recipe.steps}, planned {stage.steps}"}


def draw(stage: Stage, demo: Path) -> Sequence[Sample]:
    """None where a model of a few steps fails."""
    if stage.row.draw is None:
        return []
    try:
        with marking_outputs():
            trained = rooms.trained(demo / stage.folder)[1]
            return stage.row.draw(trained, demo / "samples" / stage.folder)
    except RunError:
        return []


def newest_exhibit(run: Path) -> list[Sample]:
    """The newest picture of validation data, moving if there is one."""
    steps = sorted((run / "exhibits").glob("step-*"))[-1:]
    files = [p for kind in ("*.gif", "*.png") for step in steps for p in sorted(step.glob(kind))]
    return [Sample(prompt="", file=file, note="held-out data") for file in files[:1]]


def print_summary(rows: dict[str, Shown], page: Path) -> None:
    width = max((len(shown.row.title) for shown in rows.values()), default=0)
    for shown in rows.values():
        print(f"{shown.row.title:<{width}}  {shown.figure or 'some metrics are missing'}")
    print(f"\nResults: {page}")
    commands = (shown.command for shown in rows.values() if shown.command)
    print(f"Next: {next(commands, command('list'))}")

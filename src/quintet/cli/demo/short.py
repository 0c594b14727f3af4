"""The demo of five minutes: ready models, a run that trains meanwhile, and its resumption."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quintet import rooms
from quintet.cli.common import recorded
from quintet.cli.demo import proof
from quintet.cli.demo.display import Display, StageSink
from quintet.cli.demo.gallery import Shown, figure_of
from quintet.cli.demo.page import Page, next_steps, sample_command, showing
from quintet.cli.demo.stages import demos, fitting_settings, live
from quintet.cli.demo.training import LivePage, course
from quintet.cli.train import train_run
from quintet.engine.errors import RunError
from quintet.engine.models import ready
from quintet.engine.runs.folder import RunFolder, read_json, read_lines
from quintet.files import marking_outputs
from quintet.report.markup import duration, file_size, format_value
from quintet.shared.demo import Live, Row

LEAD = (
    "Samples of small models that come with the package, made just now on the CPU of this machine. "
    "Each number is measured on held-out data and stands beside its reference."
)
MULTIPLE = 40
"""The steps are a multiple: evaluations, checkpoints and reports divide them."""


def short_demo(folder: Path, steps: int | None) -> None:
    rows, shown = ready_rows(), live()
    page = Page(folder / "index.html", LEAD, list(rows.values()), "Sampling.")
    with showing(page), Display([shown.stage], steps) as display:
        for name, row in rows.items():
            display.say(f"{row.row.title}: sampling {name}")
            draw(name, row, folder / "samples" / Path(name).name)
            page.write()
        train(shown, folder, steps, page, display)
        result = stop_and_resume(shown, folder, page, display)
        page.sections["next"] = next_steps(
            {row.row.title: row.command for row in rows.values() if row.command}
        )
    print(f"{shown.stage.recipe}: {proof.sentence(result)}")
    print(f"Results: {page.path}")
    if not result.holds:
        raise RunError(f"the resumed run differs from the uninterrupted one; see {page.path}")


# -- ready models -------------------------------------------------------------------------------


def ready_rows() -> dict[str, Shown]:
    """By `ready/NAME`, with numbers and without samples."""
    cards = ready.cards()
    rows: dict[str, Shown] = {}
    for demo in demos():
        if demo.row is None:
            continue
        name = f"ready/{demo.ready}"
        rows[name] = Shown(demo.row, note="Sampling …")
        if name in cards:
            describe(rows[name], name, demo.row, cards[name])
    return rows


def describe(shown: Shown, name: str, row: Row, card: Mapping[str, Any]) -> None:
    folder = ready.found(Path(name))
    recipe = rooms.recipe_of(read_json(folder / "config.json"), folder)
    metrics = {n.removeprefix("val/"): value for n, value in card["metrics"].items()}
    shown.figure = figure_of(row, metrics, recipe)
    shown.command = sample_command(row, name)
    shown.facts = {
        "model": name,
        "trained with": card["command"],
        "duration": duration(card["seconds"]),
        "size": file_size(card["bytes"]),
        **{metric: format_value(value, ".4g") for metric, value in metrics.items()},
    }


def draw(name: str, shown: Shown, out: Path) -> None:
    """Samples of a model; a model that cannot be used leaves a sentence in its row."""
    assert shown.row.draw is not None
    try:
        with marking_outputs():
            shown.samples = shown.row.draw(rooms.trained(Path(name))[1], out)
    except RunError as error:
        shown.note = f"No samples: {error}"


# -- the run ------------------------------------------------------------------------------------


def train(live: Live, folder: Path, steps: int | None, page: Page, display: Display) -> None:
    """Train the stage, with the page; a resumed demo goes on."""
    stage, run, note = live.stage, folder / live.stage.folder, None
    planned = steps or stage.steps
    page.write("Measuring the speed of this machine.")
    if (run / "config.json").exists():
        settings = recorded(run)[1]
    else:
        settings, note = fitting_settings(stage, folder, steps, MULTIPLE)
        settings = replace(settings, keep_every=3 * settings.save_every)  # to resume from
    display.start(stage, settings.steps, max(RunFolder(run).steps(), default=0))
    if note:
        display.say(note)
    if max(RunFolder(run).steps(), default=0) < settings.steps:
        sinks = [StageSink(display, stage), LivePage(live, run, planned, page)]
        try:
            train_run(stage.recipe, settings, run, "resume_or_new", more=sinks, progress=False)
        except RunError as error:
            raise RunError(f"{stage.recipe}: {error}") from None
    page.sections["training"] = course(live, run, planned, read_lines(run / "metrics.jsonl"))
    display.end(stage, "trained")


def stop_and_resume(live: Live, folder: Path, page: Page, display: Display) -> proof.Proof:
    def say(line: str) -> None:
        display.say(line)
        page.write(line)

    result = proof.stop_and_resume(folder / live.stage.folder, folder / "resumed", say)
    page.sections["proof"] = proof.section(result)
    return result

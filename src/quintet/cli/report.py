"""`quintet report`."""

import dataclasses
from pathlib import Path

import tyro

from quintet.cli.words import parse, recorded
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Report:
    """Write one page: curves, exhibits, health and numbers of a run, or of several side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run's folder; several are compared."""
    out: Path | None = None
    """The page; without it report.html in the run, or here where there are several runs."""


def report(given: list[str]) -> None:
    from quintet.report import write_page

    asked = parse(Report, given, "report")
    if not asked.runs:
        raise RunError("name a run, for example: quintet report runs/a")
    for run in asked.runs:
        check(run)
    beside = asked.runs[0] if len(asked.runs) == 1 else Path()
    print(write_page(asked.runs, asked.out or beside / "report.html"))


def check(run: Path) -> None:
    """A run of a recipe that is there, or of a model of the user's own."""
    from quintet.engine.folder import RunFolder

    about = RunFolder.open(run).about if run.is_dir() else {"recipe": ""}
    if about.get("recipe") is not None or "model" in about:
        recorded(run)

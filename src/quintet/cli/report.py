"""`quintet report`."""

import dataclasses
from pathlib import Path

import tyro

from quintet.cli.common import parse, recorded
from quintet.engine.errors import RunError
from quintet.suggest import command


@dataclasses.dataclass(kw_only=True)
class Report:
    """Write an HTML page with curves, samples, health and metrics of a run, or compare several."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folder; several are compared."""
    out: Path | None = None
    """Output file; default: report.html in the run folder, or in the current folder for several."""


def report(arguments: list[str]) -> None:
    from quintet.report import write_page

    options = parse(Report, arguments, "report")
    if not options.runs:
        raise RunError(f"name a run, for example: {command('report', 'RUN')}")
    for run in options.runs:
        check(run)
    folder = options.runs[0] if len(options.runs) == 1 else Path()
    print(write_page(options.runs, options.out or folder / "report.html"))


def check(run: Path) -> None:
    """Accept a run of a known recipe or of a custom model."""
    from quintet.engine.runs.folder import RunFolder

    about = RunFolder.open(run).about if run.is_dir() else {"recipe": ""}
    if about.get("recipe") is not None or "model" in about:
        recorded(run)

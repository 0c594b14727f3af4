"""`quintet report`."""

import dataclasses
from pathlib import Path

import tyro

from quintet.cli.words import parse, recorded


@dataclasses.dataclass(kw_only=True)
class Report:
    """Write report.html: curves, exhibits and health events of a run on one page."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""


def report(given: list[str]) -> None:
    from quintet.report import write_report

    asked = parse(Report, given, "report")
    recorded(asked.run)
    print(write_report(asked.run))

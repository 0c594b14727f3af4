"""The stage that the page shows while it trains: curves, and pictures as they improve."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.cli.demo.gallery import encoded_png
from quintet.cli.demo.page import Page
from quintet.engine.runs.folder import RunFolder, read_json, read_lines
from quintet.engine.runs.sinks import Sink
from quintet.report.curves import svg
from quintet.report.markup import is_finite, text
from quintet.shared.demo import Live

REWRITE = 3.0
"""Seconds between versions of the page."""
Record = Mapping[str, Any]


class LivePage(Sink):
    """Rewrites the page while the stage trains."""

    def __init__(self, live: Live, run: Path, planned: int, page: Page):
        self.live, self.run, self.planned, self.page = live, run, planned, page

    def report(self, record: Record) -> None:
        if time.monotonic() - self.page.written > REWRITE:
            self.write()

    def exhibits(self, step: int, files: Sequence[Path]) -> None:
        self.write()

    def event(self, step: int, message: str) -> None:
        pass

    def close(self) -> None:
        self.write()

    def write(self) -> None:
        folder = RunFolder.open(self.run)
        records = read_lines(folder.metrics) if folder.metrics.exists() else []
        steps = folder.about["settings"]["steps"]
        step = max((record["step"] for record in records), default=0)
        self.page.sections["training"] = course(self.live, self.run, self.planned, records)
        self.page.write(f"Training: step {step} of {steps}. The page reloads itself.")


def course(live: Live, run: Path, planned: int, records: Sequence[Record]) -> str:
    """The section of the page."""
    steps = read_json(run / "config.json")["settings"]["steps"]
    fewer = f" ({planned} planned, on a faster machine)" if steps < planned else ""
    return (
        '<section class="training"><h2>Training on this machine</h2>'
        f"<p><code>{text(live.stage.recipe)}</code>, {steps} steps{fewer}, from random weights. "
        f"{text(live.stage.row.description)} The strip shows held-out pictures after each part of "
        f'the training. <a href="{text(run.name)}/report.html">Report of the run</a></p>'
        f'<div class="course"><div class="plots">{plots(live, records)}</div>'
        f"{strip(live, run, records)}</div></section>"
    )


# -- curves -------------------------------------------------------------------------------------


def plots(live: Live, records: Sequence[Record]) -> str:
    """The loss, and the metric with its baselines."""
    names = dict.fromkeys(name for record in records for name in record)
    loss = [name for name in names if name.endswith("/loss") and not name.startswith("val")]
    chosen = [name for name in names if name.startswith(f"val/{live.metric}")]
    return "".join(plot(live, records, lines) for lines in (loss[:1], chosen) if lines)


def plot(live: Live, records: Sequence[Record], names: Sequence[str]) -> str:
    traces: list[dict[str, Any]] = []
    for colour, name in enumerate(names):
        points = [(r["step"], r[name]) for r in records if is_finite(r.get(name))]
        x, y = zip(*points) if points else ((), ())
        traces.append({"name": name, "colour": colour, "x": x, "y": y, "baseline": colour > 0})
    traces = [trace for trace in traces if trace["x"]]
    keys = "".join(
        f'<span><span class="dot c{t["colour"]}"></span>{text(spoken(live, t["name"]))} '
        f"{t['y'][-1]:.3g}</span>"
        for t in traces
    )
    return f'<figure>{svg(traces)}<figcaption class="key">{keys}</figcaption></figure>'


def spoken(live: Live, name: str) -> str:
    """val/psnr_mean_colour: mean colour."""
    if not name.startswith("val/"):
        return "training loss"
    rest = name.removeprefix(f"val/{live.metric}").replace("_", " ").strip()
    return rest or f"{live.metric.upper()} in {live.unit}, held out"


# -- pictures -----------------------------------------------------------------------------------


def strip(live: Live, run: Path, records: Sequence[Record]) -> str:
    """A column of outputs after each evaluation, and the originals."""
    folders = sorted((run / "exhibits").glob("step-*"))
    sheets = [sheet for folder in folders for sheet in sorted(folder.glob("*.png"))[:1]]
    if not sheets:
        return '<p class="waiting">The first pictures come with the first evaluation.</p>'
    metric = f"val/{live.metric}"
    values = {r["step"]: r[metric] for r in records if is_finite(r.get(metric))}
    columns = ""
    for sheet in sheets:
        step = int(sheet.parent.name.removeprefix("step-"))
        value = f"<br>{values[step]:.1f} {live.unit}" if step in values else ""
        columns += column(live.strip(sheet)[1], f"step {step}", value)
    return f'<div class="strip">{columns}{column(live.strip(sheets[-1])[0], "original")}</div>'


def column(pixels: Any, title: str, value: str = "") -> str:
    label = text(title)
    return (
        f'<figure><img alt="{label}" src="{encoded_png(pixels)}">'
        f"<figcaption>{label}{value}</figcaption></figure>"
    )

"""report.html: curves, exhibits and events of a run on one page that needs no network.

Curves are drawn as SVG on the page itself. Every text from a file is escaped.
"""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.engine.checkpoint import describe
from quintet.engine.folder import RunFolder, read_lines
from quintet.engine.sinks import Sink

STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#667;--line:#3b6fd4;--paper:#fff;--card:#f4f5f7}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#9aa3ad;--line:#7aa7ff;--paper:#15181c;--card:#20252b}}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem}
body{background:var(--paper);color:var(--ink)}
h1{margin:.2em 0}h2{margin-top:2em}.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));gap:1rem}
.card{background:var(--card);border-radius:.5rem;padding:.75rem}
svg{width:100%;height:auto}polyline{fill:none;stroke:var(--line);stroke-width:1.5}
svg text{font-size:10px;fill:var(--soft)}img{max-width:100%;image-rendering:pixelated}
table{border-collapse:collapse}td,th{padding:.15rem .75rem .15rem 0;text-align:left}
pre{overflow:auto;background:var(--card);padding:1rem;border-radius:.5rem}li{margin:.2em 0}
"""
SKIPPED = {"step", "samples", "epoch", "seconds", "order"}


class ReportSink(Sink):
    """Refreshes the page at every evaluation."""

    def __init__(self, run: Path):
        self.run = run

    def report(self, record: Mapping[str, Any]) -> None:
        if any(name.startswith("val/") for name in record):
            self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        """A page that cannot be written must not stop a run."""
        try:
            write_report(self.run)
        except OSError as error:
            self.problem = describe(error)


def write_report(run: Path) -> Path:
    folder = RunFolder.open(run)
    path = run / "report.html"
    aside = run / ".report.html.writing"
    aside.unlink(missing_ok=True)  # it could be a link that leads elsewhere
    aside.write_text(page(folder), encoding="utf-8")
    aside.replace(path)
    return path


def page(folder: RunFolder) -> str:
    records = read_lines(folder.metrics) if folder.metrics.exists() else []
    events = read_lines(folder.events) if folder.events.exists() else []
    title = html.escape(
        f"{folder.path.name} · {folder.about.get('recipe') or 'a model of your own'}"
    )
    parts = [
        f"<h1>{title}</h1>",
        f"<p class=soft>{summary(folder, records)}</p>",
        section("What it makes", exhibits(folder)),
        section("Held-out numbers", last_values(records, "val/")),
        section("Curves", curves(records)),
        section("Events", listed(events)),
        section("Configuration", f"<pre>{html.escape(json.dumps(folder.about, indent=2))}</pre>"),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}" if body else ""


def summary(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> str:
    trained = [r for r in records if "samples_per_second" in r]
    if not trained:
        return "No reports yet."
    last, about, best = trained[-1], folder.about, folder.best()
    settings = about.get("settings")
    steps = settings.get("steps") if isinstance(settings, Mapping) else None
    words = [
        f"step {last.get('step')} of {steps}",
        f"{last.get('samples')} samples ({last.get('epoch')} epochs)",
        f"{shown(last.get('seconds'), '.0f')} seconds",
        f"{shown(last['samples_per_second'], '.4g')} samples per second",
        f"{shown(last.get('waiting'), '.0%')} of the time waiting for data",
        f"global batch {about.get('global_batch')} on {about.get('processes')} process(es)",
    ]
    if best:
        value = shown(best.get("value"), ".5g")
        words.append(f"best {best.get('metric')} {value} at step {best.get('step')}")
    return html.escape(" · ".join(words))


def shown(value: Any, style: str) -> str:
    """A number in its style; anything else that a file holds there, as text."""
    return format(value, style) if isinstance(value, (int, float)) else str(value)


KINDS = {".png": "image/png", ".gif": "image/gif", ".wav": "audio/wav", ".txt": "text/plain"}
LARGEST = 12_000_000
"""Bytes of one exhibit in the page; a larger one is named instead."""


def exhibits(folder: RunFolder) -> str:
    """The newest ones, inside the page, so that it can be sent around alone."""
    steps = sorted(folder.exhibits.glob("step-*")) if folder.exhibits.is_dir() else []
    figures = []
    for path in sorted(steps[-1].iterdir()) if steps else []:
        # The page travels: it holds nothing from outside the run.
        if path.suffix in KINDS and path.is_file() and not path.is_symlink():
            label = html.escape(f"{path.stem} at {steps[-1].name}")
            caption = f"<figcaption class=soft>{label}</figcaption>"
            figures.append(f"<figure>{shown_file(path, label)}{caption}</figure>")
    return "".join(figures)


def shown_file(path: Path, label: str) -> str:
    if path.stat().st_size > LARGEST:
        return html.escape(f"{path.name} is too large for this page")
    content, kind = path.read_bytes(), KINDS[path.suffix]
    if kind == "text/plain":
        return f"<pre>{html.escape(content.decode('utf-8', 'replace'))}</pre>"
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if kind.startswith("audio"):
        return f'<audio controls aria-label="{label}" src="{source}"></audio>'
    return f'<img alt="{label}" src="{source}">'


def last_values(records: Sequence[Mapping[str, Any]], prefix: str) -> str:
    found = [r for r in records if any(name.startswith(prefix) for name in r)]
    if not found:
        return ""
    rows = "".join(
        f"<tr><th>{html.escape(name.removeprefix(prefix))}</th><td>{number(value)}</td></tr>"
        for name, value in found[-1].items()
        if name.startswith(prefix)
    )
    step = number(found[-1].get("step"))
    return f"<table>{rows}</table><p class=soft>averaged weights, step {step}</p>"


def number(value: Any) -> str:
    return html.escape(shown(value, "d" if isinstance(value, int) else ".5g"))


def curves(records: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(n for r in records for n in r if n not in SKIPPED)
    drawn = []
    for name in names:
        points = [
            (r["step"], r[name])
            for r in records
            if is_finite(r.get(name)) and is_finite(r.get("step"))
        ]
        if len(points) > 1:
            drawn.append(f"<div class=card><b>{html.escape(name)}</b>{curve(points)}</div>")
    return f"<div class=cards>{''.join(drawn)}</div>" if drawn else ""


def is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def curve(points: Sequence[tuple[float, float]], width: int = 300, height: int = 120) -> str:
    points = thin(points, 400)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    along, up = (width - 10) / ((right - left) or 1), (height - 30) / ((high - low) or 1)
    line = " ".join(
        f"{5 + (x - left) * along:.1f},{height - 15 - (y - low) * up:.1f}" for x, y in points
    )
    label = f"from {ys[0]:.4g} to {ys[-1]:.4g}"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'<polyline points="{line}"/><text x="5" y="10">{high:.4g}</text>'
        f'<text x="5" y="{height - 3}">{low:.4g}</text>'
        f'<text x="{width - 5}" y="{height - 3}" text-anchor="end">now {ys[-1]:.4g}</text></svg>'
    )


def thin(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    stride = max(1, len(points) // most)
    return points if stride == 1 else [*points[::stride], points[-1]]


def listed(events: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(
        f"<li><b>step {number(e.get('step'))}</b> {html.escape(str(e.get('message')))}</li>"
        for e in events
    )
    return f"<ul>{items}</ul>" if items else ""

"""report.html: a self-contained page about one run, or several side by side."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from quintet.engine.errors import RunError
from quintet.engine.runs.checkpoint import describe
from quintet.engine.runs.folder import finite
from quintet.engine.runs.sinks import Sink
from quintet.files import atomic_write
from quintet.report import script
from quintet.report.curves import curves, run_label
from quintet.report.exhibits import exhibits
from quintet.report.markup import details, number, table, text
from quintet.report.receipts import apart
from quintet.report.source import Source, content, load, mapping, summary
from quintet.suggest import command

MARKER = "<!-- quintet report -->"
"""Identifies our pages; other files are never overwritten."""
MAX_EVENTS = 200
"""Events per list."""
MAX_CONFIG = 100_000
"""Characters of a configuration."""
MAX_DIFFERENCES = 100
LOGO = '<span class="logo" aria-hidden="true"><i></i><i></i><i></i><i></i><i></i></span>'


class ReportSink(Sink):
    """Sink that rewrites the page after every evaluation."""

    error = ""

    def __init__(self, run: Path):
        self.run = run

    def report(self, record: Mapping[str, Any]) -> None:
        if any(name.startswith("val/") for name in record):
            self._write()

    def close(self) -> None:
        self._write()
        if self.error:
            sys.stderr.write(f"the report of {self.run} was not written: {self.error}\n")

    def _write(self) -> None:
        """Write the page; an error must not stop the run."""
        try:
            write_report(self.run)
            self.error = ""
        except Exception as error:
            self.error = describe(error)


def write_report(run: Path) -> Path:
    """Write the report of one run into its folder."""
    return write_page([run], run / "report.html")


def write_page(runs: Sequence[Path], out: Path) -> Path:
    """Write one page about several runs.

    The write is atomic. An existing file that is not a report is not overwritten.
    """
    sources = load(runs)
    check_output(out)
    # "replace": names of files that are not UTF-8 hold lone surrogates.
    atomic_write(out, page(sources).encode("utf-8", "replace"), sync=False)
    return out


def check_output(out: Path, flag: str = "--out") -> None:
    if not out.parent.is_dir():
        raise RunError(f"there is no folder {out.parent}; create it, or choose another {flag}")
    if out.exists() or out.is_symlink():
        try:
            ours = MARKER.encode() in content(out, sys.maxsize, 100)
        except OSError:
            ours = False
        if not ours:
            raise RunError(
                f"{out} exists and is not a Quintet report; move it, or choose another {flag}"
            )


class Live(NamedTuple):
    """Of a page whose parts are filled by a second script."""

    top: str
    """Content above the report."""
    code: str
    """The script, which may ask the host of the page."""


def page(sources: Sequence[Source], live: Live | None = None) -> str:
    name = text(" and ".join(f"{s.label} · {s.recipe}" for s in sources[:3])) or "No runs"
    groups = group_by_recipe(sources)
    parts = page_parts(groups)
    top, code = live or ("", "")
    for part in parts if live else ():
        parts[part] = str  # empty
    body = "".join(
        runs_section(group, number, len(groups) > 1, parts) for number, group in enumerate(groups)
    )
    packed = script.plotly()
    plotly = f'<script id="plotly" type="text/plain">{packed.data}</script>' if packed else ""
    second = f"<script>{code}</script>" if code else ""
    return (
        f'<!doctype html>{MARKER}<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{script.policy(code)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{name}</title><style>{script.style()}</style></head><body>"
        f'<a class="skip" href="#main">Skip to content</a><header>{LOGO}<h1>{name}</h1>'
        f'{links(groups)}</header><main id="main">{plotly_note(sources)}{top}'
        f"{block('overview', parts)}{body}</main>{plotly}<script>{script.script()}</script>{second}"
        "</body></html>\n"
    )


Parts = dict[str, Callable[[], str]]
"""What makes each part of a page, by its id; a live page asks for those that have changed."""


def page_parts(groups: Sequence[Sequence[Source]]) -> Parts:
    parts: Parts = {"overview": partial(overview, groups)}
    num_runs = sum(map(len, groups))
    for index, group in enumerate(groups):
        own = group_parts(group, num_runs)
        parts |= {f"{name}-{index}": make for name, make in own.items()}
    return parts


def group_parts(group: Sequence[Source], num_runs: int) -> Parts:
    group, incomparable = apart(group)
    notes = "".join(f"<li>{text(note)}</li>" for note in incomparable[:MAX_EVENTS])
    warning = f'<div class="warn"><ul>{notes}</ul></div>' if notes else ""
    log = "Configuration, environment and log"

    def columns(title: str, column: Callable[[Source], str]) -> Callable[[], str]:
        return lambda: section(title, side_by_side(group, [column(s) for s in group]))

    return {
        "differences": lambda: differences(group),
        "progress": lambda: progress(group),
        "curves": lambda: section("Curves", curves(group)),
        "samples": columns("Samples", partial(exhibits, num_runs=num_runs)),
        "metrics": lambda: section("Validation metrics", warning + validation(group)),
        "health": columns("Health", health),
        "data": columns("Data", data),
        "log": columns(log, environment),
    }


def block(name: str, parts: Parts) -> str:
    return f'<div class="part" id="{name}">{parts[name]()}</div>'


def plotly_note(sources: Sequence[Source]) -> str:
    if script.plotly():
        return ""
    again = command("report", *(source.path for source in sources))
    return (
        '<p class="note" role="note">Interactive curves and 3-D meshes need plotly: '
        f"<code>pip install plotly</code>, then <code>{text(again)}</code>.</p>"
    )


def group_by_recipe(sources: Sequence[Source]) -> list[list[Source]]:
    """Group runs by recipe, to compare them; a _tiny variant counts as the same recipe."""
    groups: dict[str, list[Source]] = {}
    for source in sources:
        groups.setdefault(source.recipe.removesuffix("_tiny"), []).append(source)
    return list(groups.values())


def heading(group: Sequence[Source]) -> str:
    return text(", ".join(dict.fromkeys(source.recipe for source in group)))


def links(groups: Sequence[Sequence[Source]]) -> str:
    if len(groups) < 2:
        return ""
    items = "".join(
        f'<li><a href="#g{n}">{heading(group)}</a></li>' for n, group in enumerate(groups)
    )
    return f'<nav aria-label="runs"><ul>{items}</ul></nav>'


def overview(groups: Sequence[Sequence[Source]]) -> str:
    """Progress of every run, if there are several recipes."""
    if len(groups) < 2:
        return ""
    rows: dict[str, list[str]] = {}
    keys = ("step", "time", "throughput", "waiting for data", "best checkpoint")
    for source in (source for group in groups for source in group):
        values = summary(source)
        rows[f"{text(source.label)} · {text(source.recipe)}"] = [
            text(values.get(key, "–")) for key in keys
        ]
    return section("Runs", table(list(keys), rows))


def runs_section(group: Sequence[Source], index: int, several: bool, parts: Parts) -> str:
    head = f'<h2 id="g{index}" class="kind">{heading(group)}</h2>' if several else ""

    def blocks(*names: str) -> str:
        return "".join(block(f"{name}-{index}", parts) for name in names)

    pair = blocks("samples", "metrics")
    pair = f'<div class="pair">{pair}</div>' if len(group) == 1 else pair
    return (
        f'<div class="runs">{head}{blocks("differences", "progress", "curves")}'
        f"{pair}{blocks('health', 'data', 'log')}</div>"
    )


def section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def side_by_side(group: Sequence[Source], bodies: Sequence[str]) -> str:
    """One column per run."""
    if len(group) == 1 or not any(bodies):
        return bodies[0] if bodies else ""
    columns = "".join(
        f'<div class="column"><h3>{run_label(n, source)}</h3>'
        f"{body or '<p class=soft>nothing yet</p>'}</div>"
        for n, (source, body) in enumerate(zip(group, bodies))
    )
    return f'<div class="columns">{columns}</div>'


def progress(group: Sequence[Source]) -> str:
    if not any(source.last_report() for source in group):
        return '<p class="soft">No reports yet.</p>'
    summaries = [summary(source) for source in group]
    if len(group) == 1:
        tiles = "".join(
            f"<div><dt>{k}</dt><dd>{text(v)}</dd></div>" for k, v in summaries[0].items()
        )
        return f'<dl class="tiles">{tiles}</dl>'
    keys = dict.fromkeys(key for values in summaries for key in values)
    rows = {key: [text(values.get(key, "–")) for values in summaries] for key in keys}
    head = [run_label(n, source) for n, source in enumerate(group)]
    return section("Progress", table(head, rows))


def flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """All fields by dotted name; the depth limit is for damaged files."""
    if not isinstance(value, Mapping) or not value or depth > 20:
        return {prefix: value}
    fields: dict[str, Any] = {}
    for name, inner in value.items():
        fields |= flatten(inner, f"{prefix}.{name}" if prefix else str(name), depth + 1)
    return fields


def differences(group: Sequence[Source]) -> str:
    """Fields of the configurations that are not the same in all runs."""
    if len(group) == 1:
        return ""
    configs = [
        flatten({k: v for k, v in s.about.items() if k not in ("id", "data")}) for s in group
    ]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = {
        text(key.removeprefix("settings.")): [cell(config.get(key)) for config in configs]
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    }
    omitted = list(rows)[MAX_DIFFERENCES:]
    head = [run_label(n, source) for n, source in enumerate(group)]
    shown = {key: rows[key] for key in list(rows)[:MAX_DIFFERENCES]}
    body = table(head, shown) if rows else '<p class="soft">The configurations are identical.</p>'
    more = f'<p class="soft">and {len(omitted)} more fields</p>' if omitted else ""
    return section("Configuration differences", body + more)


def cell(value: Any) -> str:
    shown = str(value) if value is not None else "–"
    return text(shown if len(shown) <= 200 else f"{shown[:200]}…")


def validation(group: Sequence[Source]) -> str:
    evaluations = [source.last_evaluation() for source in group]
    names = dict.fromkeys(n for record in evaluations for n in record if n.startswith("val/"))
    rows = {
        text(name.removeprefix("val/")): [number(record.get(name)) for record in evaluations]
        for name in list(names)[:MAX_EVENTS]
    }
    if not rows:
        return ""
    steps = ", ".join(number(record.get("step")) for record in evaluations)
    head = [run_label(n, source) for n, source in enumerate(group)] if len(group) > 1 else []
    return f'{table(head, rows)}<p class="soft">EMA weights, step {steps}</p>'


def event_kind(event: Mapping[str, Any]) -> str:
    message = str(event.get("message"))
    if message.startswith(("health:", "skipped the update")):
        return "health"
    return "data" if message.startswith("skipped ") else "log"


def events_of(source: Source, kind: str) -> list[Mapping[str, Any]]:
    return [event for event in source.events if event_kind(event) == kind]


def event_list(events: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(
        f"<li><b>step {number(e.get('step'))}</b> {text(str(e.get('message'))[:2000])}</li>"
        for e in events[-MAX_EVENTS:]
    )
    more = len(events) - MAX_EVENTS
    before = (
        f'<p class="soft">the last {MAX_EVENTS}; {more} more in events.jsonl</p>'
        if more > 0
        else ""
    )
    return f"{before}<ul>{items}</ul>" if items else ""


def health(source: Source) -> str:
    events = events_of(source, "health")
    if events:
        return f'<div class="warn">{event_list(events)}</div>'
    return '<p class="good">✓ No warnings: all values finite, no monitor triggered.</p>'


def data(source: Source) -> str:
    sizes, skipped = mapping(source.about.get("data")), events_of(source, "data")
    origin = source.settings.get("data")
    rows = {
        "source": [text("built-in" if origin is None else origin)],
        **{
            label: [f"{number(sizes[split])} samples"]
            for label, split in (("training", "train"), ("validation", "valid"))
            if split in sizes
        },
        "skipped": [f"{len(skipped)} files" if skipped else "none"],
    }
    reasons: dict[str, int] = {}
    for event in skipped:
        reasons[reason(event)] = reasons.get(reason(event), 0) + 1
    counts = {text(why): [str(count)] for why, count in sorted(reasons.items())[:20]}
    by_reason = f"<h3>Skipped files by reason</h3>{table((), counts)}" if counts else ""
    return table((), rows) + by_reason + details("skipped files", event_list(skipped))


def reason(event: Mapping[str, Any]) -> str:
    """The message without the file name, which it may contain twice."""
    name, _, why = str(event.get("message")).removeprefix("skipped ").partition(": ")
    return why.removeprefix(f"{name}: ")[:200]


def environment(source: Source) -> str:
    about = source.about
    rows = {
        text(key): [text(value)]
        for name in ("machine", "versions")
        for key, value in mapping(about.get(name)).items()
    }
    rows = {"quintet": [text(about.get("quintet"))], **rows}
    try:
        config = json.dumps(finite(about), indent=2, allow_nan=False)
    except RecursionError:
        config = "nested too deeply"
    config = config if len(config) <= MAX_CONFIG else f"{config[:MAX_CONFIG]}\n…"
    return (
        details("configuration", f'<pre tabindex="0">{text(config)}</pre>')
        + details("environment", table((), rows))
        + details("log", event_list(events_of(source, "log")))
    )

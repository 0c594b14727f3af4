"""report.html: one page that shows a run, or several beside each other, and needs no network."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.engine.checkpoint import describe
from quintet.engine.errors import RunError
from quintet.engine.sinks import Sink
from quintet.report import script
from quintet.report.curves import curves, named
from quintet.report.exhibits import exhibits
from quintet.report.markup import folded, number, table, text
from quintet.report.source import Source, content, facts, last_report, load, part

MARK = "<!-- quintet report -->"
"""What tells our pages from the files of others, which are never written over."""
LIST = 200
"""Lines of a list of events."""
CONFIGURATION = 100_000
"""Characters of one configuration."""
DIFFERENCES = 100
LOGO = '<span class="logo" aria-hidden="true"><i></i><i></i><i></i><i></i><i></i></span>'


class ReportSink(Sink):
    """Refreshes the page at every evaluation."""

    problem = ""

    def __init__(self, run: Path):
        self.run = run

    def report(self, record: Mapping[str, Any]) -> None:
        if any(name.startswith("val/") for name in record):
            self._write()

    def close(self) -> None:
        self._write()
        if self.problem:
            sys.stderr.write(f"the page of {self.run} was not written: {self.problem}\n")

    def _write(self) -> None:
        """Whatever is wrong with a page must not stop a run."""
        try:
            write_report(self.run)
            self.problem = ""
        except Exception as error:
            self.problem = describe(error)


def write_report(run: Path) -> Path:
    """The page of one run, in its folder."""
    return write_page([run], run / "report.html")


def write_page(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    opening: str = "",
    closing: str = "",
) -> Path:
    """One page of several runs; `opening` and `closing` are HTML of our own around them.

    The file is complete or absent. One that is there and is no report of ours is refused.
    """
    sources = load(runs)
    check_place(out)
    aside = out.with_name(f".{out.name}.writing")
    aside.unlink(missing_ok=True)  # it could be a link that leads elsewhere
    with open(aside, "x", encoding="utf-8", errors="replace") as file:
        file.write(page(sources, title, opening, closing))
    aside.replace(out)
    return out


def check_place(out: Path) -> None:
    if not out.parent.is_dir():
        raise RunError(f"there is no folder {out.parent}; make it, or give another --out")
    if out.exists() or out.is_symlink():
        try:
            ours = MARK.encode() in content(out, sys.maxsize, 100)
        except OSError:
            ours = False
        if not ours:
            raise RunError(
                f"{out} exists and is not a report of Quintet; move it, or give another --out"
            )


def page(
    sources: Sequence[Source], title: str | None = None, opening: str = "", closing: str = ""
) -> str:
    name = text(title or " and ".join(f"{s.label} · {s.recipe}" for s in sources[:3]))
    groups = alike(sources)
    body = "".join(
        group_of_runs(group, number if len(groups) > 1 else None, len(sources))
        for number, group in enumerate(groups)
    )
    packed = script.plotly()
    plotly = f'<script id="plotly" type="text/plain">{packed.data}</script>' if packed else ""
    return (
        f'<!doctype html>{MARK}<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{script.policy()}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{name}</title><style>{script.style()}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the content</a><header>{LOGO}<h1>{name}</h1>'
        f'{links(groups)}</header><main id="main">{opening}{missing(sources)}{overview(groups)}'
        f"{body}{closing}</main>{plotly}<script>{script.script()}</script></body></html>\n"
    )


def missing(sources: Sequence[Source]) -> str:
    if script.plotly():
        return ""
    command = f"quintet report {' '.join(str(s.path) for s in sources)}"
    return (
        '<p class="note" role="note">Curves that can be zoomed and meshes that turn need plotly: '
        f"<code>pip install plotly</code>, then <code>{text(command)}</code>.</p>"
    )


def alike(sources: Sequence[Source]) -> list[list[Source]]:
    """Runs of one recipe can be compared, and those of its tiny twin."""
    found: dict[str, list[Source]] = {}
    for source in sources:
        found.setdefault(source.recipe.removesuffix("_tiny"), []).append(source)
    return list(found.values())


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
    """Where every run stands, when they are of several kinds."""
    if len(groups) < 2:
        return ""
    rows: dict[str, list[str]] = {}
    keys = ("step", "time", "speed", "waiting for data", "best")
    for source in (source for group in groups for source in group):
        known = facts(source)
        rows[f"{text(source.label)} · {text(source.recipe)}"] = [
            text(known.get(key, "–")) for key in keys
        ]
    return section("Runs", table(list(keys), rows))


def group_of_runs(group: Sequence[Source], index: int | None, share: int) -> str:
    head = "" if index is None else f'<h2 id="g{index}" class="kind">{heading(group)}</h2>'
    made = section("What it makes", beside(group, [exhibits(s, share) for s in group]))
    measured = section("Held-out numbers", held_out(group))
    parts = [
        differences(group),
        standing(group),
        f'<div class="pair">{made}{measured}</div>' if len(group) == 1 else made + measured,
        section("Curves", curves(group)),
        section("Health", beside(group, [health(s) for s in group])),
        section("Data", beside(group, [data(s) for s in group])),
        section("Configuration, machine and log", beside(group, [details(s) for s in group])),
    ]
    return f'<div class="runs">{head}{"".join(parts)}</div>'


def section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def beside(group: Sequence[Source], bodies: Sequence[str]) -> str:
    """The same of every run, in columns where there are several."""
    if len(group) == 1 or not any(bodies):
        return bodies[0] if bodies else ""
    columns = "".join(
        f'<div class="column"><h3>{named(n, source)}</h3>{body or "<p class=soft>nothing yet</p>"}'
        "</div>"
        for n, (source, body) in enumerate(zip(group, bodies))
    )
    return f'<div class="columns">{columns}</div>'


def standing(group: Sequence[Source]) -> str:
    if not any(last_report(source) for source in group):
        return '<p class="soft">No reports yet.</p>'
    known = [facts(source) for source in group]
    if len(group) == 1:
        tiles = "".join(f"<div><dt>{k}</dt><dd>{text(v)}</dd></div>" for k, v in known[0].items())
        return f'<dl class="tiles">{tiles}</dl>'
    keys = dict.fromkeys(key for one in known for key in one)
    rows = {key: [text(one.get(key, "–")) for one in known] for key in keys}
    head = [named(n, source) for n, source in enumerate(group)]
    return section("Where they stand", table(head, rows))


def flat(value: Any, at: str = "", depth: int = 0) -> dict[str, Any]:
    """Dotted names of all fields, down to a depth that no configuration has."""
    if not isinstance(value, Mapping) or not value or depth > 20:
        return {at: value}
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= flat(inner, f"{at}.{name}" if at else str(name), depth + 1)
    return found


def differences(group: Sequence[Source]) -> str:
    """Only the fields that are not the same in all runs."""
    if len(group) == 1:
        return ""
    asked = [flat({k: v for k, v in s.about.items() if k not in ("id", "data")}) for s in group]
    keys = dict.fromkeys(key for one in asked for key in one)
    rows = {
        text(key.removeprefix("settings.")): [cell(one.get(key)) for one in asked]
        for key in keys
        if any(one.get(key) != asked[0].get(key) for one in asked)
    }
    left = list(rows)[DIFFERENCES:]
    head = [named(n, source) for n, source in enumerate(group)]
    shown = {key: rows[key] for key in list(rows)[:DIFFERENCES]}
    body = table(head, shown) if rows else '<p class="soft">Their configurations are equal.</p>'
    more = f'<p class="soft">and {len(left)} more fields</p>' if left else ""
    return section("What differs", body + more)


def cell(value: Any) -> str:
    words = str(value) if value is not None else "–"
    return text(words if len(words) <= 200 else f"{words[:200]}…")


def held_out(group: Sequence[Source]) -> str:
    newest = [evaluation(source) for source in group]
    names = dict.fromkeys(n for found in newest for n in found if n.startswith("val/"))
    rows = {
        text(name.removeprefix("val/")): [number(found.get(name)) for found in newest]
        for name in list(names)[:LIST]
    }
    if not rows:
        return ""
    steps = ", ".join(number(found.get("step")) for found in newest)
    head = [named(n, source) for n, source in enumerate(group)] if len(group) > 1 else []
    return f'{table(head, rows)}<p class="soft">averaged weights, step {steps}</p>'


def evaluation(source: Source) -> Mapping[str, Any]:
    found = [r for r in source.reports if any(name.startswith("val/") for name in r)]
    return found[-1] if found else {}


def kind_of(event: Mapping[str, Any]) -> str:
    message = str(event.get("message"))
    if message.startswith(("health:", "skipped the update")):
        return "health"
    return "data" if message.startswith("skipped ") else "log"


def of_kind(source: Source, kind: str) -> list[Mapping[str, Any]]:
    return [event for event in source.events if kind_of(event) == kind]


def listed(events: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(
        f"<li><b>step {number(e.get('step'))}</b> {text(str(e.get('message'))[:2000])}</li>"
        for e in events[-LIST:]
    )
    more = len(events) - LIST
    before = f'<p class="soft">the last {LIST}; {more} more in events.jsonl</p>' if more > 0 else ""
    return f"{before}<ul>{items}</ul>" if items else ""


def health(source: Source) -> str:
    found = of_kind(source, "health")
    if found:
        return f'<div class="warn">{listed(found)}</div>'
    return '<p class="good">✓ Nothing to report: every number finite, no monitor fired.</p>'


def data(source: Source) -> str:
    known, skipped = part(source.about, "data"), of_kind(source, "data")
    origin = source.settings.get("data")
    rows = {
        "from": [text("built-in" if origin is None else origin)],
        **{
            words: [f"{number(known[name])} samples"]
            for words, name in (("to learn from", "train"), ("held out", "valid"))
            if name in known
        },
        "skipped": [f"{len(skipped)} files" if skipped else "none"],
    }
    reasons: dict[str, int] = {}
    for event in skipped:
        reasons[reason(event)] = reasons.get(reason(event), 0) + 1
    counted = {text(why): [str(count)] for why, count in sorted(reasons.items())[:20]}
    why = f"<h3>Skipped, and why</h3>{table((), counted)}" if counted else ""
    return table((), rows) + why + folded("which files", listed(skipped))


def reason(event: Mapping[str, Any]) -> str:
    """Without the name of the file, which the message may give twice."""
    name, _, why = str(event.get("message")).removeprefix("skipped ").partition(": ")
    return why.removeprefix(f"{name}: ")[:200]


def details(source: Source) -> str:
    about = source.about
    rows = {
        text(key): [text(value)]
        for name in ("machine", "versions")
        for key, value in part(about, name).items()
    }
    rows = {"quintet": [text(about.get("quintet"))], **rows}
    try:
        written = json.dumps(about, indent=2)
    except RecursionError:
        written = "nested too deeply to be shown"
    cut = written if len(written) <= CONFIGURATION else f"{written[:CONFIGURATION]}\n…"
    return (
        folded("configuration", f'<pre tabindex="0">{text(cut)}</pre>')
        + folded("machine and versions", table((), rows))
        + folded("log", listed(of_kind(source, "log")))
    )

"""Curves: which measures share a plot, and what is drawn before a script draws it better."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintet.report.markup import attribute, folded, is_finite, text
from quintet.report.source import Source

Points = Sequence[tuple[float, float]]

SKIPPED = {"step", "samples", "epoch", "seconds", "order"}
MACHINERY = ("rate", "norm", "skipped", "update_ratio", "samples_per_second", "waiting", "damaged")
"""Last words of measures that say how the machine runs, not what was learnt."""
POINTS = 500
MOST = 60
"""Plots on a page; the names of further ones are listed."""
NAMES = 500
"""Measures that are looked at; a damaged file can name any number."""
KINDS = {"": "training", "val": "held out", "val_live": "held out, live weights"}


@dataclass(frozen=True)
class Line:
    run: int
    kind: str
    """One of KINDS."""
    measure: str
    points: Points


@dataclass
class Plot:
    name: str
    lines: list[Line] = field(default_factory=list[Line])

    @property
    def is_machinery(self) -> bool:
        return self.name.rpartition("/")[2] in MACHINERY


def split(name: str) -> tuple[str, str]:
    """val/psnr -> val, psnr; vae/psnr -> '', vae/psnr."""
    kind, slash, rest = name.partition("/")
    return (kind, rest) if slash and kind in ("val", "val_live") else ("", name)


def homes(names: Iterable[str]) -> dict[str, str]:
    """The plot of each measure: held-out values go to the training measure that is called alike,
    and a baseline (psnr_mean_colour) to the measure that it is a baseline of (psnr)."""
    split_names = [(name, *split(name)) for name in names]
    trained = [rest for _, kind, rest in split_names if not kind]
    held_out = {rest for _, kind, rest in split_names if kind}
    found: dict[str, str] = {}
    for name, kind, rest in split_names:
        if kind:
            begins = [m for m in held_out if rest.startswith(f"{m}_")]
            rest = min(begins, key=len, default=rest)
            alike = [t for t in trained if t.endswith(f"/{rest}")]
            rest = alike[0] if alike else rest
        found[name] = rest
    return found


def plots(sources: Sequence[Source]) -> list[Plot]:
    every = dict.fromkeys(n for s in sources for r in s.reports for n in r if n not in SKIPPED)
    names = list(every)[:NAMES]
    home = homes(names)
    found: dict[str, Plot] = {}
    for name in names:
        kind, measure = split(name)
        plot = found.setdefault(home[name], Plot(home[name]))
        baseline = measure != home[name].rpartition("/")[2]
        if kind == "val_live" and (baseline or len(sources) > 1):
            continue  # baselines know no weights, and many runs leave no room
        for run, source in enumerate(sources):
            if points := series(source.reports, name):
                plot.lines.append(Line(run, kind, measure, points))
    return [p for p in found.values() if any(len(line.points) > 1 for line in p.lines)]


def series(records: Sequence[Mapping[str, Any]], name: str) -> Points:
    points = [
        (r["step"], r[name]) for r in records if is_finite(r.get(name)) and is_finite(r.get("step"))
    ]
    return thin(points, POINTS)


def thin(points: Points, most: int) -> Points:
    stride = max(1, len(points) // most)
    return points if stride == 1 else [*points[::stride], points[-1]]


def curves(sources: Sequence[Source]) -> str:
    found = plots(sources)
    found.sort(key=lambda plot: not plot.name.endswith("/loss"))
    learnt = [p for p in found if not p.is_machinery]
    shown = [card(plot, sources) for plot in learnt[:MOST]]
    running = [card(plot, sources) for plot in found if plot.is_machinery][:MOST]
    body = f'{key(sources)}{TOOLS}<div class="cards">{"".join(shown)}</div>' if shown else ""
    if left := [text(plot.name) for plot in learnt[MOST:]]:
        body += f'<p class="soft">Not drawn, in metrics.jsonl: {", ".join(left[:200])}</p>'
    cards = f'<div class="cards">{"".join(running)}</div>' if running else ""
    return body + folded("How it ran: rates, norms, speed, waiting", cards)


def key(sources: Sequence[Source]) -> str:
    """One legend for all plots of several runs."""
    if len(sources) == 1:
        return ""
    runs = " ".join(f"<span>{named(n, s)}</span>" for n, s in enumerate(sources))
    return (
        f'<p class="key">{runs} <span class="soft">lines: training; points: held out; '
        "dashed: baselines</span></p>"
    )


def named(index: int, source: Source) -> str:
    """A run with the dot of its colour."""
    return f'<span class="dot c{index & 7}"></span>{text(source.label)}'


TOOLS = (
    '<p class="tools" hidden><label><input type="checkbox" class="all-log"> logarithmic</label> '
    '<label>smooth training <input type="range" class="smooth" min="0" max="95" value="0"></label>'
    "</p>"
)


def card(plot: Plot, sources: Sequence[Source]) -> str:
    several = len(sources) > 1
    drawn: list[dict[str, Any]] = [
        {
            "name": title(line, plot, sources if several else ()),
            "colour": line.run if several else order(line, plot),
            "kind": line.kind or "train",
            "aside": line.kind != "" and line.measure != plot.name.rpartition("/")[2],
            "x": [x for x, _ in line.points],
            "y": [float(f"{y:.6g}") for _, y in line.points],
        }
        for line in plot.lines
    ]
    more = f' style="height:{14 + len(drawn)}rem"' if len(drawn) > 2 and not several else ""
    more = ' data-several="yes"' if several else more
    label = text(f"{plot.name}: {'; '.join(map(said, drawn))}")
    return (
        f'<figure class="card"><figcaption><b>{text(plot.name)}</b>'
        '<button type="button" class="log" aria-pressed="false" hidden>log</button></figcaption>'
        f'<div class="plot" role="img" aria-label="{label}" data-plot="{attribute(drawn)}"{more}>'
        f"{svg(drawn)}</div></figure>"
    )


def order(line: Line, plot: Plot) -> int:
    """Colours of one run: training, held out, then baselines; both kinds of weights share one."""
    if not line.kind:
        return 0
    measures = dict.fromkeys(other.measure for other in plot.lines if other.kind)
    own = plot.name.rpartition("/")[2]
    return 1 + sorted(measures, key=lambda m: m != own).index(line.measure)


def title(line: Line, plot: Plot, sources: Sequence[Source]) -> str:
    aside = line.kind and line.measure != plot.name.rpartition("/")[2]
    words = line.measure if aside else KINDS[line.kind]
    return f"{sources[line.run].label}, {words}" if sources else words


def said(line: Mapping[str, Any]) -> str:
    ys = line["y"]
    return f"{line['name']} from {ys[0]:.4g} to {ys[-1]:.4g}"


def svg(lines: Sequence[Mapping[str, Any]], width: int = 320, height: int = 150) -> str:
    """All lines of a plot in one frame; up is more."""
    xs = [x for line in lines for x in line["x"]]
    ys = [y for line in lines for y in line["y"]]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    along, up = (width - 10) / ((right - left) or 1), (height - 30) / ((high - low) or 1)
    drawn = ""
    for line in lines:
        places = " ".join(
            f"{5 + (x - left) * along:.1f},{height - 15 - (y - low) * up:.1f}"
            for x, y in thin(list(zip(line["x"], line["y"])), 150)
        )
        drawn += f'<polyline class="c{line["colour"] & 7}" points="{places}"/>'
    return (
        f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{drawn}'
        f'<text x="5" y="10">{high:.4g}</text><text x="5" y="{height - 3}">{low:.4g}</text>'
        f'<text x="{width - 5}" y="{height - 3}" text-anchor="end">step {right:g}</text></svg>'
    )

"""Training and validation curves: metrics grouped into plots, with an SVG fallback for plotly."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintet.report.markup import attribute, details, is_finite, text
from quintet.report.source import Source

Points = Sequence[tuple[float, float]]

NOT_PLOTTED = {"step", "samples", "epoch", "seconds", "order"}
DIAGNOSTICS = (
    "learning_rate",
    "grad_norm",
    "skipped",
    "update_ratio",
    "samples_per_second",
    "waiting",
    "damaged",
)
"""Metrics, by the last part of their name, that describe the run and not the model."""
MAX_POINTS = 500
MAX_PLOTS = 60
"""Plots on a page; the names of the others are listed."""
MAX_METRICS = 500
"""Metrics considered; a damaged file can name any number."""
LABELS = {"": "training", "val": "validation", "val_live": "validation, live weights"}


@dataclass(frozen=True)
class Line:
    run: int
    kind: str
    """A key of LABELS."""
    metric: str
    points: Points


@dataclass
class Plot:
    name: str
    lines: list[Line] = field(default_factory=list[Line])

    @property
    def metric(self) -> str:
        """The name without the network: `psnr` for `vae/psnr`."""
        return self.name.rpartition("/")[2]

    def is_baseline(self, line: Line) -> bool:
        return line.kind != "" and line.metric != self.metric


def split_name(name: str) -> tuple[str, str]:
    """val/psnr -> val, psnr; vae/psnr -> '', vae/psnr."""
    kind, slash, rest = name.partition("/")
    return (kind, rest) if slash and kind in ("val", "val_live") else ("", name)


def assign_plots(names: Iterable[str]) -> dict[str, str]:
    """The plot of each metric: a validation metric joins the training metric of the same name, a
    baseline (psnr_mean_colour) the metric that it is a baseline of (psnr)."""
    split_names = [(name, *split_name(name)) for name in names]
    trained = [rest for _, kind, rest in split_names if not kind]
    validated = {rest for _, kind, rest in split_names if kind}
    plot_names: dict[str, str] = {}
    for name, kind, rest in split_names:
        if kind:
            prefixes = [metric for metric in validated if rest.startswith(f"{metric}_")]
            rest = min(prefixes, key=len, default=rest)
            rest = next((metric for metric in trained if metric.endswith(f"/{rest}")), rest)
        plot_names[name] = rest
    return plot_names


def build_plots(sources: Sequence[Source]) -> list[Plot]:
    every = dict.fromkeys(n for s in sources for r in s.reports for n in r if n not in NOT_PLOTTED)
    names = list(every)[:MAX_METRICS]
    plot_names = assign_plots(names)
    plots: dict[str, Plot] = {}
    for name in names:
        kind, metric = split_name(name)
        plot = plots.setdefault(plot_names[name], Plot(plot_names[name]))
        if kind == "val_live" and (metric != plot.metric or len(sources) > 1):
            continue  # baselines do not depend on weights, and several runs would crowd the plot
        for run, source in enumerate(sources):
            if points := series(source.reports, name):
                plot.lines.append(Line(run, kind, metric, points))
    return [p for p in plots.values() if any(len(line.points) > 1 for line in p.lines)]


def series(records: Sequence[Mapping[str, Any]], name: str) -> Points:
    points = [
        (r["step"], r[name]) for r in records if is_finite(r.get(name)) and is_finite(r.get("step"))
    ]
    return thin(points, MAX_POINTS)


def thin(points: Points, limit: int) -> Points:
    """About `limit` points, always with the last one."""
    stride = max(1, len(points) // limit)
    return points if stride == 1 else [*points[::stride], points[-1]]


def curves(sources: Sequence[Source]) -> str:
    plots = build_plots(sources)
    plots.sort(key=lambda plot: not plot.name.endswith("/loss"))
    metrics = [plot for plot in plots if plot.metric not in DIAGNOSTICS]
    shown = [card(plot, sources) for plot in metrics[:MAX_PLOTS]]
    body = f'{legend(sources)}{CONTROLS}<div class="cards">{"".join(shown)}</div>' if shown else ""
    if omitted := [text(plot.name) for plot in metrics[MAX_PLOTS:]]:
        body += f'<p class="soft">Not plotted, see metrics.jsonl: {", ".join(omitted[:200])}</p>'
    diagnostics = [plot for plot in plots if plot.metric in DIAGNOSTICS][:MAX_PLOTS]
    cards = "".join(card(plot, sources) for plot in diagnostics)
    cards = f'<div class="cards">{cards}</div>' if cards else ""
    return body + details("Diagnostics: learning rate, gradient norm, throughput, data wait", cards)


def legend(sources: Sequence[Source]) -> str:
    """One legend for all plots of several runs."""
    if len(sources) == 1:
        return ""
    runs = " ".join(f"<span>{run_label(n, s)}</span>" for n, s in enumerate(sources))
    return (
        f'<p class="key">{runs} <span class="soft">lines: training; points: validation; '
        "dashed: baselines</span></p>"
    )


def run_label(index: int, source: Source) -> str:
    """The name of a run with a dot in one of the eight colours of page.css."""
    return f'<span class="dot c{index & 7}"></span>{text(source.label)}'


CONTROLS = (
    '<p class="tools" hidden><label><input type="checkbox" class="all-log"> log scale</label> '
    '<label>smoothing <input type="range" class="smooth" min="0" max="95" value="0"></label></p>'
)


def card(plot: Plot, sources: Sequence[Source]) -> str:
    several = len(sources) > 1
    traces: list[dict[str, Any]] = [
        {
            "name": title(line, plot, sources if several else ()),
            "colour": line.run if several else colour_index(line, plot),
            "kind": line.kind or "train",
            "source": [line.run, f"{line.kind}/{line.metric}" if line.kind else line.metric],
            "baseline": plot.is_baseline(line),
            "x": [x for x, _ in line.points],
            "y": [float(f"{y:.6g}") for _, y in line.points],
        }
        for line in plot.lines
    ]
    style = f' style="height:{14 + len(traces)}rem"' if len(traces) > 2 else ""
    style = ' data-several="yes"' if several else style
    summaries = [f"{t['name']} from {t['y'][0]:.4g} to {t['y'][-1]:.4g}" for t in traces]
    label = text(f"{plot.name}: {'; '.join(summaries)}")
    return (
        f'<figure class="card"><figcaption><b>{text(plot.name)}</b>'
        '<button type="button" class="log" aria-pressed="false" hidden>log</button></figcaption>'
        f'<div class="plot" role="img" aria-label="{label}" data-plot="{attribute(traces)}"{style}>'
        f"{svg(traces)}</div></figure>"
    )


def colour_index(line: Line, plot: Plot) -> int:
    """Colours of a single run: training, validation, then baselines; EMA and live weights share
    one."""
    if not line.kind:
        return 0
    metrics = dict.fromkeys(other.metric for other in plot.lines if other.kind)
    return 1 + sorted(metrics, key=lambda metric: metric != plot.metric).index(line.metric)


def title(line: Line, plot: Plot, sources: Sequence[Source]) -> str:
    name = line.metric if plot.is_baseline(line) else LABELS[line.kind]
    return f"{sources[line.run].label}, {name}" if sources else name


def svg(traces: Sequence[Mapping[str, Any]], width: int = 320, height: int = 150) -> str:
    """All lines of a plot on common axes."""
    xs = [x for trace in traces for x in trace["x"]]
    ys = [y for trace in traces for y in trace["y"]]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    x_scale, y_scale = (width - 10) / ((right - left) or 1), (height - 30) / ((high - low) or 1)
    polylines = ""
    for trace in traces:
        points = " ".join(
            f"{5 + (x - left) * x_scale:.1f},{height - 15 - (y - low) * y_scale:.1f}"
            for x, y in thin(list(zip(trace["x"], trace["y"])), 150)
        )
        dash = ' stroke-dasharray="4 3"' if trace.get("baseline") else ""
        polylines += f'<polyline class="c{trace["colour"] & 7}"{dash} points="{points}"/>'
    return (
        f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{polylines}'
        f'<text x="5" y="10">{high:.4g}</text><text x="5" y="{height - 3}">{low:.4g}</text>'
        f'<text x="{width - 5}" y="{height - 3}" text-anchor="end">step {right:g}</text></svg>'
    )

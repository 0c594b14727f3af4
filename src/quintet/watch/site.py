"""What the live page shows of the runs of a folder: the parts of the report that have changed."""

import contextlib
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from quintet.engine.errors import RunError
from quintet.engine.runs import requests
from quintet.report import script
from quintet.report.markup import duration, is_finite, text
from quintet.report.page import Live, event_kind, group_by_recipe, page, page_parts
from quintet.report.receipts import PREFIX, apart
from quintet.report.source import Source, entries, is_folder, mapping
from quintet.watch.reader import Follower, Points, age, new_points

HERE = Path(__file__).parent
Digested = tuple[str, Callable[[], str]]
"""A part of the page: what changes with its content, and the content."""
MAX_SHOWN = 8
"""Runs on a page: the number of colours."""
MAX_RUNS, MAX_FOLDERS, DEPTH = 500, 3000, 3
"""Runs that are found, folders that are searched, and how deep."""
LISTED = 10.0
"""Seconds between two searches for new runs."""
MAX_FOLLOWED = 32
"""Runs that are kept in memory."""
MAX_SAMPLES = 4
"""Rendered samples that are kept: of pages with other runs."""
QUIET = 120.0
"""Seconds since the last report in which a run is taken to be running on another machine."""
LABELS = {"save": "Save now", "evaluate": "Evaluate now", "stop": "Save and stop"}
NOTES = {"stop": "Stop the run at its next report? It saves its state and can be resumed."}


class Site:
    """The runs below a folder, or one run. Names in addresses are looked up, never made a path."""

    def __init__(self, root: Path, writes: bool):
        if not root.is_dir():
            raise RunError(f"there is no folder {root}; name a run, or a folder of runs")
        self.root, self.writes = root, writes
        self.followers: dict[str, Follower] = {}
        self.samples: dict[Any, Digested] = {}
        self.listed: tuple[float, Sequence[str]] = (-LISTED, ())
        self.lock = threading.Lock()

    def paths(self) -> dict[str, Path]:
        if is_run(self.root):
            return {self.root.resolve().name: self.root}
        runs = sorted(runs_below(self.root), key=lambda run: -written(run))
        return {run.relative_to(self.root).as_posix(): run for run in runs[:MAX_RUNS]}

    def follow(self, names: Sequence[str]) -> dict[str, Follower]:
        """The named runs, or the latest one; a run that vanished is still known."""
        names = list(dict.fromkeys(names))[:MAX_SHOWN]
        if not all(name in self.followers for name in names) or not names:
            paths = self.paths()
            if len(self.followers) > MAX_FOLLOWED:
                self.followers.clear()
            names = names or list(paths)[:1]
            for name in names:
                if name in paths and name not in self.followers:
                    self.followers[name] = Follower(paths[name], name)
        return {name: self.followers[name] for name in names if name in self.followers}

    def page(self, names: Sequence[str]) -> str:
        with self.lock:
            runs = self.follow(names)
            sources = [follower.read() for follower in runs.values()]
            code = (HERE / "page.js").read_text(encoding="utf-8")
            style = (HERE / "page.css").read_text(encoding="utf-8")
            chooser = f'<div id="chooser">{self._chooser(runs)}</div>'
            top = f"<style>{style}</style>{chooser}{self._bars(sources)}"
            return page(sources, Live(top, code))

    def _offered(self) -> Sequence[str]:
        """Names of the runs. The folders are searched again after some seconds."""
        if time.monotonic() > self.listed[0] + LISTED:
            self.listed = (time.monotonic(), list(self.paths()))
        return self.listed[1]

    def _chooser(self, shown: Mapping[str, Follower]) -> str:
        if is_run(self.root):
            return ""
        boxes = "".join(
            f'<li><label><input type="checkbox" name="run" value="{text(name)}"'
            f"{' checked' if name in shown else ''}> {text(name)}</label></li>"
            for name in self._offered()
        )
        if not boxes:
            return f'<p class="soft">There are no runs in {text(self.root)} yet.</p>'
        return (
            f"<details{'' if shown else ' open'}><summary>Choose runs</summary>"
            '<form class="chooser">'
            f'<ul>{boxes}</ul><button>Show</button> <span class="soft">at most {MAX_SHOWN}, newest '
            "first</span></form></details>"
        )

    def _bars(self, sources: Sequence[Source]) -> str:
        """A line for each run: its state, its alarms and the buttons."""
        buttons = "".join(
            f'<button type="button" data-action="{action}" title="at the next report"'
            f' data-sure="{text(NOTES.get(action, ""))}">{LABELS[action]}</button>'
            for action in ("save", "evaluate", "stop")
            if self.writes
        )
        bars = "".join(
            f'<div class="bar" data-run="{text(s.label)}"><span class="lamp"></span>'
            f'<b>{text(s.label)}</b><span class="state">…</span>'
            f'<a class="alarms" href="#health-{index}" hidden></a>'
            f'<span class="buttons">{buttons}</span></div>'
            for index, group in enumerate(group_by_recipe(sources))
            for s in group
        )
        return f'{bars}<p id="connection" class="warn" role="alert" hidden></p>'

    def news(self, names: Sequence[str], have: Mapping[str, Any]) -> dict[str, Any]:
        """What has changed since the answer whose `digests` and `at` are in `have`."""
        with self.lock:
            runs = self.follow(names)
            sources = [with_live_rows(follower.read()) for follower in runs.values()]
            news: dict[str, Any] = {"digests": {}, "parts": {}, "points": {}}
            groups = group_by_recipe(sources)
            parts = page_parts(groups) | {"chooser": lambda: self._chooser(runs)}
            for part, make in parts.items():
                kind, _, index = part.rpartition("-")
                group = groups[int(index)] if kind else []
                held = mapping(have.get("digests")).get(part)
                if kind == "curves":
                    digest, html = plotted(runs, group), make
                elif kind == "samples":
                    digest, html = self._samples(group, len(runs), make)
                else:
                    digest, html = digested(make)
                news["digests"][part] = digest
                if digest != held:
                    news["parts"][part] = html()
                elif kind == "curves":
                    news["points"][part] = [points_since(runs[s.label], have) for s in group]
            news["at"] = {name: run.journal.tail.offset for name, run in runs.items()}
            news["states"] = {s.label: state(runs[s.label], s) for s in sources}
            return news

    def _samples(self, group: Sequence[Source], num_runs: int, make: Callable[[], str]) -> Digested:
        """Rendering reads all files, and draws spectrograms: only where the files have
        changed."""
        files = [path for source in group for path in source.exhibits()[1]]
        labels = (source.label for source in group)
        key = (num_runs, *labels, *((str(path), *stamp(path)) for path in files))
        if key not in self.samples:
            if len(self.samples) >= MAX_SAMPLES:
                self.samples.clear()
            self.samples[key] = digested(make)
        return self.samples[key]

    def ask(self, name: str, action: str) -> list[str]:
        """Put a request into the folder of a run that is shown."""
        run = self.followers.get(name)
        if not self.writes:
            raise RunError("this page is read-only: start it without --read-only")
        if run is None or action not in requests.ACTIONS:
            raise RunError(f"there is no run {name} here, or no action {action}")
        if process_of(run) == "gone":
            raise RunError(f"{name} has stopped; resume it first")
        try:
            return requests.ask(run.path, action)
        except OSError as error:
            raise RunError(f"{run.path} cannot be written: {error.strerror}") from None


def is_run(path: Path) -> bool:
    return (path / "config.json").is_file() and (path / "checkpoints").is_dir()


def runs_below(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Level by level; nothing hidden, no links, and nothing inside of a run."""
    level, searched = [root], 0
    for _ in range(depth):
        folders: list[Path] = []
        for folder in level:
            searched += 1
            if searched > MAX_FOLDERS:
                return
            inside = [p for p in entries(folder) if not p.name.startswith(".") and is_folder(p)]
            yield from (path for path in inside if is_run(path))
            folders += [path for path in inside if not is_run(path)]
        level = folders


def written(run: Path) -> float:
    """When the run last wrote a report, or began."""
    times = (stamp(run / name)[0] for name in ("metrics.jsonl", "config.json"))
    return next(filter(None, times), 0)


def stamp(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError:
        return (0, 0)
    return (about.st_mtime_ns, about.st_size)


def digested(make: Callable[[], str]) -> Digested:
    html = make()
    return digest_of(html), lambda: html


def digest_of(html: str) -> str:
    return hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:16]


def plotted(runs: Mapping[str, Follower], group: Sequence[Source]) -> str:
    """Changes where new points are not enough: with other lines, names of receipts, or without the
    script that draws them."""
    journals = [runs[source.label].journal for source in group]
    judged = any(name.startswith(PREFIX) for journal in journals for name in journal.points)
    drawn = script.plotly() is not None and not (judged and apart(group)[1])
    ends = [] if drawn else [journal.tail.offset for journal in journals]
    return digest_of(repr(([journal.plotted for journal in journals], ends)))


def points_since(run: Follower, have: Mapping[str, Any]) -> Points:
    """Points by metric, after the offset that a page has."""
    at = mapping(have.get("at")).get(run.label)
    return new_points(run.journal.since(at if isinstance(at, int) else 0))


def with_live_rows(source: Source) -> Source:
    """With the time left, at the pace of the latest reports, and the space on the disk."""
    rows: dict[str, str] = {}
    reports = [r for r in source.reports if "samples_per_second" in r][-20:]
    left = steps_left(source)
    if len(reports) > 1 and left:
        try:
            steps, seconds = (reports[-1][n] - reports[0][n] for n in ("step", "seconds"))
            rows["time left"] = duration(left * seconds / steps)
        except (KeyError, TypeError, ArithmeticError):
            rows["time left"] = "unknown"
    with contextlib.suppress(OSError):
        rows["free on disk"] = f"{shutil.disk_usage(source.path).free / 1e9:,.1f} GB"
    return replace(source, live=rows)


def steps_left(source: Source) -> float | None:
    step, steps = source.last_report().get("step", 0), source.settings.get("steps")
    return steps - step if is_finite(step) and is_finite(steps) else None  # type: ignore[operator]


def state(run: Follower, source: Source) -> dict[str, Any]:
    """Whether the run goes on, and its alarms, for the line at the top of the page."""
    warnings = sum(event_kind(event) == "health" for event in source.events)
    asked = requests.pending(run.path)
    found: dict[str, Any] = {"warnings": warnings, "asked": asked, "kind": "running"}
    quiet = age(run.journal.tail.path)
    process = process_of(run)
    since = "no report yet" if quiet is None else f"last report {duration(round(quiet))} ago"
    if run.missing:
        return {**found, "kind": "gone", "text": f"cannot be read: {run.missing}"}
    if steps_left(source) == 0 and process != "here":
        return {**found, "kind": "finished", "text": "finished"}
    recent = quiet is not None and quiet < QUIET
    if process == "here" or (process == "unknown" and recent):
        return {**found, "text": f"running, {since}"}
    where = "stopped" if process == "gone" else "not running on this machine"
    return {**found, "kind": "stopped", "text": f"{where}, {since}"}


def process_of(run: Follower) -> Literal["here", "gone", "unknown"]:
    """Where the process of the latest start is: on this machine, or gone from it."""
    start = requests.start_of(run.path)
    if is_held(run.path):
        run.held_start = start
        return "here"
    return "gone" if start and start == run.held_start else "unknown"


def is_held(run: Path) -> bool:
    """Whether a process of this machine holds the lock of the run. Trying the lock instead could
    keep a run from starting."""
    try:
        number = (run / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    return any(f":{number} " in line and "FLOCK" in line for line in locks.splitlines())

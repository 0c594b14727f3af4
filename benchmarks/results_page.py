"""docs/results.md and its pictures and sounds, from what benchmarks/results.py has packed.

Every number on the page comes from a row.json or from a line of benchmarks/learning.py. What is not
in the folder stays as it was: a row, or the tables of learning.py.
"""

import json
import math
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from curves import PANELS, Panel, picture, points, read
from learning import LIMITS
from PIL import Image
from provenance import ROOT

from quintet import rooms

DOCS = ROOT / "docs"
SHOWN_PICTURES = 6
SHOWN_SOUNDS = 3
KINDS = ("recording", "original", "copy", "infilled", "from-text")
"""Of sounds, from left to right."""
MAX_SIDE = 1100
"""Pixels of a picture on the page."""


@dataclass(frozen=True)
class Measure:
    """A metric of a room, and the metrics of trivial methods on the same samples."""

    name: str
    label: str
    better: Literal["higher", "lower", "–"] = "higher"
    trivial: dict[str, str] = field(default_factory=dict[str, str])
    """Label by metric."""
    share: bool = False


PSNR = {"psnr_bicubic": "bicubic", "psnr_mean_colour": "mean colour"}
COPYING = {"mel_error_interpolated": "interpolated", "mel_error_copied": "copied"}
MEASURES: dict[str, tuple[Measure, ...]] = {
    "image/vqgan": (
        Measure("psnr", "PSNR, dB", trivial=PSNR),
        Measure("ssim", "SSIM"),
        Measure("codebook_usage", "codes in use", share=True),
    ),
    "video/tokenizer": (
        Measure("psnr", "PSNR, dB", trivial={**PSNR, "psnr_mean_frame": "mean frame"}),
        Measure("ssim", "SSIM"),
        Measure("motion_error", "motion error", "lower", {"motion_error_still": "still clip"}),
        Measure("codebook_usage", "codes in use", share=True),
    ),
    "mesh/autoencoder": (
        Measure("triangles", "triangles exact in every coordinate", share=True),
        Measure("exact", "exact coordinates", share=True),
        Measure("chamfer_bins", "Chamfer distance, bins", "lower"),
        Measure("codebook_usage", "codes in use", share=True),
    ),
    "mesh/transformer": (
        Measure(
            "loss",
            "loss, nats a code",
            "lower",
            {"loss_without_text": "without the caption", "uniform": "any code as likely"},
        ),
        Measure("valid", "valid meshes", share=True),
        Measure("closed", "closed edges", share=True),
        Measure("nearest_generated", "distance to the nearest training mesh", "–"),
        Measure("nearest_validation", "the same, of held-out meshes", "–"),
    ),
    "music/mulan": (
        Measure("recall_at_10", "recall at 10", trivial={"chance": "chance"}, share=True),
        Measure("recall_at_1", "recall at 1", share=True),
        Measure("median_rank_of_text", "median rank of the caption", "lower"),
    ),
    "speech/voicebox": (
        Measure("mel_error", "mel error of an infilled half", "lower", COPYING),
        Measure("share_of_copying", "the same over that of copying", "lower", share=True),
        Measure("duration_error", "error of durations", "lower", share=True),
    ),
}
TRIVIAL = ("bicubic", "mean_frame", "mean_colour", "interpolated", "chance", "still", "copied")
"""Baselines of judges to be better than; others are the limits of a method or of the judge."""
PICTURES = {
    "image/vqgan": "held-out pictures above their reconstructions",
    "video/tokenizer": "frames of held-out clips above their reconstructions",
    "mesh/autoencoder": "held-out meshes beside their reconstructions",
    "mesh/transformer": "held-out meshes, and three generated for the caption of each",
    "music/mulan": "similarity of held-out sounds (rows) and captions (columns); "
    "the diagonal is the right pair",
    "speech/voicebox": "mel spectrograms of a held-out recording, its copy by the vocoder, the "
    "infilled one and speech from text",
}
INTRODUCTION = """# Results

*Written by `benchmarks/results.py` from files of results; do not edit.*

The six recipes on files that people have made: photographs and drawings, clips, furniture and
machine parts, recorded and rendered music, speech in several languages. The recipes were made for
built-in data; only what the flags in the commands say was set for these files. All numbers are of
EMA weights on held-out files, and no group of files (a picture and its parts, a track, a sentence
by several voices) is in both splits. A value that is not better than a trivial method is marked.
How judges work and what a receipt is: [judges.md](judges.md).

Pictures, sounds and meshes on this page come from the files below, under their licences.
All but the rendered scores can be assembled again from the same packages:
`benchmarks/realdata/assemble.py`."""
SMALL = """

**Rows named `_tiny` are what small networks learn on a CPU in the time shown; the recipe for a GPU
has not been trained on their files.**"""
BUILTIN = """## Built-in data

`benchmarks/learning.py`, seed 0: measured values and, in brackets, what is required."""
REAL = """## Goals on real data

`benchmarks/learning.py RECIPE --real TRAIN HELD`, seed 0, in the same way, with the flags that are
shown."""
RECORDS = """## Speed records

The time to a fixed bar on built-in data, seed 0, from the start of the command to its end: imports,
compilation, training, evaluation. A record counts if `quintet replay RUN --verify 3` confirms its
log ([verified logs](resume.md#verified-logs)); `python benchmarks/learning.py RECIPE --verify 3`
does both."""


@dataclass
class Result:
    """A row, with its exhibits and its log unpacked in a folder, or with its section of the page
    as it was."""

    recipe: str
    facts: dict[str, Any]
    folder: Path
    before: str = ""

    @property
    def slug(self) -> str:
        return "results-" + self.recipe.replace("/", "-")

    def metric(self, name: str) -> float | None:
        metrics = self.facts["metrics"]
        if name == "chance":  # a random order of the pairs
            return min(1.0, 10 / metrics["samples"])
        if name == "uniform":  # of the codes of the recipe before
            stage = rooms.recipe_function(
                self.facts["recipe"].replace("transformer", "autoencoder")
            )
            return math.log(math.prod(stage().model.levels))  # type: ignore[attr-defined]
        return metrics.get(name)


def write_page(folder: Path, recipes: Sequence[str]) -> int:
    page = DOCS / "results.md"
    before = sections_of(page.read_text(encoding="utf-8") if page.is_file() else "")
    (DOCS / "sounds").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        found = (row(folder, recipe, Path(place), before) for recipe in recipes)
        results = [result for result in found if result]
        remove_all_but([result for result in results if result.before])
        sections = [
            introduction(results),
            data_table(results),
            summary(results),
            *(result.before or section(result) for result in results),
            *learned(records(folder), before),
        ]
    page.write_text("\n\n".join(filter(None, sections)) + "\n", encoding="utf-8")
    print(page)
    return 0


def remove_all_but(results: Sequence[Result]) -> None:
    """Pictures, sounds and facts of rows that are written again, or are no more."""
    kept = tuple(result.slug for result in results)
    for pattern in ("images/results-*", "sounds/results-*", "results/*"):
        for path in DOCS.glob(pattern):
            if not f"results-{path.name.removeprefix('results-')}".startswith(kept):
                path.unlink()


def sections_of(page: str) -> dict[str, str]:
    """The sections of a page by their headings."""
    parts = page.strip().split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.strip()}" for part in parts}


def row(folder: Path, recipe: str, place: Path, before: dict[str, str]) -> Result | None:
    """From the tar of a row; without one, as the page shows it."""
    name = recipe.replace("/", "-")
    path, known = folder / "results" / f"{name}.tar", DOCS / "results" / f"{name}.json"
    if path.is_file():
        return unpacked(path, recipe, place)
    if known.is_file() and recipe in before:
        facts = json.loads(known.read_text(encoding="utf-8"))
        return Result(recipe, facts, place, before[recipe])
    return None


def unpacked(path: Path, recipe: str, place: Path) -> Result:
    with tarfile.open(path) as tar:
        tar.extractall(place / path.stem, filter="data")
    folder = place / path.stem
    facts = json.loads((folder / "row.json").read_text(encoding="utf-8"))
    return Result(recipe, facts, folder)


def records(folder: Path) -> list[dict[str, Any]]:
    paths = sorted((folder / "records").glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [json.loads(line) for line in lines if line.startswith('{"benchmark": "learning"')]
    return sorted(rows, key=lambda row: row["recipe"])


# -- text -----------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    line = lambda cells: f"| {' | '.join(cells)} |"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def number(value: float | None, share: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if share:
        return f"{100 * value:.3g} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def seconds(result: Result) -> str:
    spent = result.facts["seconds"]
    return f"{spent['train'] + spent['stage'] + spent['judge']:.0f} s"


def worse(value: float | None, other: float | None, better: str) -> bool:
    if value is None or other is None:
        return False
    return value <= other if better == "higher" else value >= other


def introduction(results: Sequence[Result]) -> str:
    tiny = any(result.facts["recipe"].endswith("_tiny") for result in results)
    return INTRODUCTION + (SMALL if tiny else "")


def data_table(results: Sequence[Result]) -> str:
    rows: dict[str, list[str]] = {}
    for result in results:
        data = result.facts["data"]
        folder = next(w for w in result.facts["commands"][0].split() if w.startswith("real/"))
        counts: dict[tuple[str, str], int] = {}
        for split in data.values():
            for source, licence, count in split["sources"]:
                counts[source, licence] = counts.get((source, licence), 0) + count
        listed = (f"{s} {n:,} ({cell(licence)})" for (s, licence), n in counts.items())
        size = sum(split["bytes"] for split in data.values()) / 1e6
        files = [f"{data[name]['files']:,} (`{data[name]['digest']}`)" for name in data]
        rows[folder.split("/")[1]] = [*files, f"{size:.1f}", "; ".join(listed)]
    head = ["medium", "files to train on (digest)", "held out (digest)", "MB"]
    listed = table([*head, "sources: files (licence)"], ([k, *v] for k, v in rows.items()))
    return f"## Data\n\n{listed}" if rows else ""


def summary(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        headline = MEASURES[result.recipe][0]
        samples = result.facts["samples"]
        rows.append(
            [
                f"[`{result.facts['recipe']}`](#{result.recipe.replace('/', '')})",
                f"{samples['train']:,} + {samples['valid']:,}",
                headline.label,
                *measured(result, headline),
                seconds(result),
            ]
        )
    head = ["trainer", "samples: training + held out", "measure", "value", "trivial methods"]
    shown = table([*head, "time, all told"], rows)
    return f"## Summary\n\n{shown}" if rows else ""


def measured(result: Result, measure: Measure) -> list[str]:
    """Cells: the value, marked if a trivial method is as good, and the trivial methods."""
    value = result.metric(measure.name)
    others = {label: result.metric(name) for name, label in measure.trivial.items()}
    losses = [label for label, other in others.items() if worse(value, other, measure.better)]
    mark = f" (**not better than {', '.join(losses)}**)" if losses else ""
    listed = ", ".join(f"{label} {number(v, measure.share)}" for label, v in others.items())
    return [f"{number(value, measure.share)}{mark}", listed or "–"]


def section(result: Result) -> str:
    facts = result.facts
    commands = "\n".join(facts["commands"])
    spent = facts["seconds"]
    before = f", after {spent['stage']:.0f} s for the first stage" if spent["stage"] else ""
    others = facts.get("beside", 0)
    runs = "another run" if others == 1 else f"{others} other runs"
    shared = f", all beside {runs} on the same device" if others else ""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = (
        f"{facts['steps']:,} steps of {facts['batch']} samples on {facts['device']} "
        f"({facts['precision']}; {versions}; commit `{facts['commit']}`): {spent['train']:.0f} s "
        f"of training with imports and evaluation, {spent['judge']:.0f} s of judging"
        f"{before}{shared}. All of it with receipts: "
        f"[JSON](results/{result.recipe.replace('/', '-')}.json)."
    )
    known = [m for m in MEASURES[result.recipe] if says_something(result.metric(m.name))]
    metrics = table(
        ["metric", "better", "value", "trivial methods"],
        ([m.label, m.better, *measured(result, m)] for m in known),
    )
    parts = [
        f"## {result.recipe}",
        f"```bash\n{commands}\n```",
        about,
        metrics,
        judged(result),
        not_judged(result),
        *pictures(result),
        sounds(result),
        curve(result),
    ]
    keep(result)
    return "\n\n".join(filter(None, parts))


def says_something(value: float | None) -> bool:
    """Not so of the share of a codebook with more codes than any data could use."""
    return value is not None and not 0 < value < 1e-6


def keep(result: Result) -> None:
    path = DOCS / "results" / f"{result.recipe.replace('/', '-')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result.facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def judged(result: Result) -> str:
    """Scores of judges, beside those of the same judge on other sets."""
    metrics = result.facts["metrics"]
    scores, baselines = metrics.get("judges", {}), metrics.get("baselines", {})
    rows = []
    for name, score in scores.items():
        about = result.facts["judges"].get(name, {"better": "higher", "unit": ""})
        sets = {k: v[name] for k, v in baselines.items() if name in v}
        losses = [
            label
            for label, other in sets.items()
            if label in TRIVIAL and worse(score["value"], other["value"], about["better"])
        ]
        mark = f" (**not better than {', '.join(losses).replace('_', ' ')}**)" if losses else ""
        others = ", ".join(f"{k.replace('_', ' ')} {number(v['value'])}" for k, v in sets.items())
        unit = f", {about['unit']}" if about["unit"] else ""
        rows.append(
            [
                f"`{name}`{unit}",
                about["better"],
                f"{interval(score)}{mark}",
                others or "–",
                f"{score['receipt']['count']:,}",
                f"`{score['digest']}`",
            ]
        )
    head = ["judge", "better", "value (95 %)", "other sets", "samples", "receipt"]
    return table(head, rows) if rows else ""


def not_judged(result: Result) -> str:
    """Judges that the row would have been asked, had their weights been on the machine."""
    asked = result.facts["metrics"].get("judges", {})
    missing = [f"`{name}`" for name in result.facts["judges"] if name not in asked]
    return f"Not judged, without their weights: {', '.join(missing)}." if missing else ""


def interval(score: dict[str, Any]) -> str:
    bounds = score["low"], score["high"]
    between = "" if None in bounds else f" ({number(bounds[0])} to {number(bounds[1])})"
    return number(score["value"]) + between


# -- pictures, sounds, curves ---------------------------------------------------------------------


def pictures(result: Result) -> list[str]:
    """The first picture of the last exhibits."""
    files = sorted(result.folder.glob("*.png"))[:1]
    for file in files:
        with Image.open(file) as opened:
            sheet = opened.convert("RGB")
        shown = turned(sheet) if result.recipe == "image/vqgan" else sheet
        shown.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
        colours = shown.quantize(256) if shown.width * shown.height > 250_000 else shown
        colours.save(DOCS / "images" / f"{result.slug}.png", optimize=True)
    about = PICTURES[result.recipe]
    alt_text = f"{result.recipe} on real data: {about}"
    caption = f"*{about[0].upper()}{about[1:]}.*"
    return [f"![{alt_text}](images/{result.slug}.png)\n\n{caption}" for _ in files]


def turned(sheet: Image.Image, gap: int = 4) -> Image.Image:
    """Of square originals, reconstructions and differences, a row for each: the originals above the
    reconstructions."""
    cell = (sheet.width - gap) // 3
    count = sheet.height // cell
    top = sheet.height - count * cell
    count = min(count, SHOWN_PICTURES)
    turned = Image.new("RGB", (gap + count * cell, gap + 2 * cell), "white")
    for number in range(count):
        for kind in range(2):
            left, upper = gap + kind * cell, top + number * cell
            picture = sheet.crop((left, upper, left + cell - gap, upper + cell - gap))
            turned.paste(picture, (gap + number * cell, gap + kind * cell))
    return turned


def sounds(result: Result) -> str:
    """A row for each of the first exhibits: its text, and its sounds to listen to."""
    groups: dict[str, dict[str, Path]] = {}
    for file in sorted(result.folder.glob("*.wav")):
        name, _, kind = file.stem.partition("-")[2].partition("-")
        groups.setdefault(name, {})[kind or "recording"] = file
    shown = dict(list(groups.items())[:SHOWN_SOUNDS])
    if not shown:
        return ""
    kinds = sorted(next(iter(shown.values())), key=KINDS.index)
    texts = captions(result)
    rows = [
        [cell(texts.get(name, "")), *(player(result, name, kind, of[kind]) for kind in kinds)]
        for name, of in shown.items()
    ]
    return table(["text", *(kind.replace("-", " ") for kind in kinds)], rows)


def captions(result: Result) -> dict[str, str]:
    """The first line of speech-N.txt; of captions.txt, the paragraph of each sound."""
    found = {
        path.stem.partition("-")[2]: path.read_text(encoding="utf-8").splitlines()[0]
        for path in result.folder.glob("speech-*.txt")
    }
    for path in result.folder.glob("captions.txt"):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            name, *lines = paragraph.strip("\n").splitlines()
            found[Path(name).stem.partition("-")[2]] = "; ".join(line.strip() for line in lines)
    return found


def player(result: Result, name: str, kind: str, wav: Path) -> str:
    import soundfile

    samples, rate = soundfile.read(wav, dtype="float32")
    target = DOCS / "sounds" / f"{result.slug}-{name}-{kind}.ogg"
    soundfile.write(target, samples, rate, format="OGG", subtype="VORBIS")
    url = f"sounds/{target.name}"
    return f'<audio controls preload="none" src="{url}"></audio> [{kind}]({url})'


def curve(result: Result) -> str:
    """As benchmarks/curves.py draws it, without what this data has no metric for."""
    reports = read(result.folder)
    panels: list[Panel] = []
    for panel in PANELS[f"{result.recipe}_tiny"]:
        lines = {name: label for name, label in panel.lines.items() if points(reports, name)}
        panels += [replace(panel, lines=lines)] if lines else []
    if not panels:
        return ""
    path = DOCS / "images" / f"{result.slug}-curves.png"
    picture(reports, panels).save(path, optimize=True)
    text = f"Training losses and validation metrics of {result.recipe} on real data"
    return f"![{text}](images/{path.name})"


# -- benchmarks/learning.py -----------------------------------------------------------------------


def learned(rows: Sequence[dict[str, Any]], before: dict[str, str]) -> list[str]:
    """Each table of the lines there are; as it was where there are none for it."""
    real, builtin = ([row for row in rows if ("data" in row) is wanted] for wanted in (True, False))
    head = ["recipe", "bar", "reached", "seconds, all told", "device", "commit", "replay"]
    records = [speedrun(row) for row in builtin if "bar" in row]
    return [
        f"{text}\n\n{made}" if made else before.get(text.partition("\n")[0].removeprefix("## "), "")
        for text, made in (
            (REAL, requirements(real) if real else ""),
            (BUILTIN, requirements(builtin) if builtin else ""),
            (RECORDS, table(head, records) if records else ""),
        )
    ]


def requirements(rows: Sequence[dict[str, Any]]) -> str:
    def measured(row: dict[str, Any], name: str, least: float) -> str:
        sign = "≤" if name in LIMITS else "≥"
        return f"{name} {number(row.get(name))} ({sign} {number(least)})"

    cells = [
        [
            " ".join(f"`{row[name]}`" for name in ("recipe", "flags") if row.get(name)),
            ", ".join(measured(row, *goal) for goal in row["required"].items()),
            ", ".join(row["missed"]) or "none",
            row["device"],
        ]
        for row in rows
    ]
    return table(["recipe", "measured (required)", "missed", "device"], cells)


def speedrun(row: dict[str, Any]) -> list[str]:
    reached = ", ".join(f"{name} {number(row[name])}" for name in row["bar"])
    checked = row.get("verification")
    if checked is None:
        outcome = "not replayed"
    else:
        verdict = "verified" if checked["verified"] else f"**differs**: {checked['differs'][0]}"
        steps = ", ".join(map(str, checked["steps"]))
        outcome = (
            f"{verdict} (steps {steps}; largest difference {checked['largest_difference']:.2g})"
        )
    return [
        f"`{row['recipe']}`",
        ", ".join(f"{name} {number(least)}" for name, least in row["bar"].items()),
        reached if row["reached"] else f"{reached} (**bar missed**)",
        number(row["seconds"]),
        row["device"],
        f"`{row['commit']}`",
        outcome,
    ]

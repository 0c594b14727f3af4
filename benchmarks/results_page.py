"""README's table and docs/results.md with its pictures and sounds, from docs/results/*.json.

Every number comes from a row.json that benchmarks/results.py has packed; a row has one for each
seed, and a value is the mean over the seeds, with the lowest and the highest in brackets.
"""

import json
import re
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from provenance import ROOT

SHOWN_SOUNDS = 3
KINDS = ("recording", "original", "copy", "infilled", "from-text")
"""Of sounds, from left to right."""
MAX_SIDE = 1100
"""Pixels of a picture on the page."""


@dataclass(frozen=True)
class Measure:
    """A metric, and others of the same samples to compare it with."""

    name: str
    label: str
    share: bool = False
    baselines: tuple[tuple[str, str], ...] = ()
    """Metric and label."""

    def shown(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.share else f"{value:.4g}"


@dataclass(frozen=True)
class Row:
    """A recipe as it is shipped, on one folder of real data or on its built-in data."""

    name: str
    recipe: str
    title: str
    what: str
    """Input and output, for README."""
    measures: tuple[Measure, ...]
    """The first is README's."""
    picture: str
    """What the exhibit shows."""
    goal: tuple[tuple[str, str, float], ...] = ()
    """Metric, the metric that it is compared with or "", and the least difference."""
    ratios: tuple[tuple[str, str, float], ...] = ()
    """Metric, the metric that it is divided by, and the largest ratio."""
    most_seconds: float = 300.0
    folder: str = ""
    """Below REAL; empty for built-in data."""
    flags: str = ""
    """What the data needs: the language of its texts, the treatment of large meshes."""
    stage: str = ""
    """Arguments of `quintet train` for the tokenizer that it depends on; REAL is the folder of the
    media."""
    at_most: tuple[tuple[str, float], ...] = ()
    """Metric and its limit."""
    first_page: bool = True
    """Part of README's table."""

    def missed(self, facts: dict[str, Any]) -> list[str]:
        """The goals that a run has not reached."""
        metrics, seconds = facts["metrics"], facts["seconds"]["train"]
        missed = []
        for name, other, least in self.goal:
            value = metrics[name] - (metrics[other] if other else 0)
            if value < least:
                over = f" over {other}" if other else ""
                missed.append(f"{name}{over} is {value:.4g}, to reach {least:g}")
        for name, other, most in self.ratios:
            if (share := metrics[name] / metrics[other]) > most:
                missed.append(f"{name} is {share:.3g} of {other}, at most {most:g}")
        for name, most in self.at_most:
            if metrics[name] > most:
                missed.append(f"{name} is {metrics[name]:.3g}, at most {most:g}")
        if seconds > self.most_seconds and not facts["beside"]:
            missed.append(f"{seconds:.0f} seconds, at most {self.most_seconds:.0f}")
        return missed


BICUBIC = ("psnr_bicubic", "bicubic")
MEAN_FRAME = ("psnr_mean_frame", "mean frame")
ROWS = {
    row.name: row
    for row in (
        Row(
            "image-vqgan",
            "image/vqgan",
            "image",
            "picture → ids of 24 bits for 8 × 8 pixels → picture",
            (Measure("psnr", "PSNR, dB", baselines=(BICUBIC,)), Measure("ssim", "SSIM")),
            "held-out pictures, their reconstructions and the difference",
            goal=(("psnr", "psnr_bicubic", 5.5),),
            folder="images",
        ),
        Row(
            "image-flow",
            "image/flow",
            "text to image",
            "caption → picture (built-in figures)",
            (
                Measure(
                    "agrees",
                    "pictures that show all of their caption",
                    share=True,
                    baselines=(("agrees_tokenizer", "real ones through the autoencoder"),),
                ),
                Measure("nearer", "nearer to training than held-out pictures are", share=True),
            ),
            "for held-out captions: the real picture, the training picture nearest to the first"
            " generated one, and three generated ones",
            goal=(("agrees", "", 0.97),),
            most_seconds=190.0,
            stage="image/autoencoder --images.builtin figures --model.latent-channels 8"
            " --steps 900 --evaluate-every 0",
        ),
        Row(
            "image-autoencoder",
            "image/autoencoder",
            "image, continuous",
            "picture → 32 numbers for 8 × 8 pixels → picture",
            (Measure("psnr", "PSNR, dB", baselines=(BICUBIC,)), Measure("ssim", "SSIM")),
            "held-out pictures, their reconstructions and the difference",
            goal=(("psnr", "", 31.0),),
            most_seconds=150.0,
            folder="images",
            first_page=False,
        ),
        Row(
            "video-autoencoder",
            "video/autoencoder",
            "video, continuous",
            "clip → 32 numbers for 4 × 8 × 8 pixels → clip",
            (Measure("psnr", "PSNR, dB", baselines=(BICUBIC, MEAN_FRAME)),),
            "frames of held-out clips above their reconstructions",
            goal=(("psnr", "psnr_mean_frame", 5.0),),
            folder="video",
            first_page=False,
        ),
        Row(
            "video-flow",
            "video/flow",
            "text to video",
            "caption → clip (built-in figures)",
            (
                Measure(
                    "agrees",
                    "clips that show all of their caption",
                    share=True,
                    baselines=(("agrees_tokenizer", "real ones through the autoencoder"),),
                ),
                Measure("nearer", "nearer to training than held-out clips are", share=True),
            ),
            "generated clips for held-out captions, their first and last frames",
            goal=(("agrees", "", 0.92),),
            at_most=(("nearer", 0.55),),
            most_seconds=355.0,
            stage="video/autoencoder --videos.builtin figures --model.latent-channels 8"
            " --steps 1200 --evaluate-every 0",
            first_page=False,
        ),
        Row(
            "video-continuation",
            "video/continuation",
            "clips continued",
            "5 frames of a clip → its next 12",
            (
                Measure(
                    "continued_psnr",
                    "PSNR of the next four frames, dB",
                    baselines=(
                        ("continued_psnr_last", "the last frame"),
                        ("continued_psnr_mean", "the mean of the five"),
                    ),
                ),
            ),
            "held-out clips, the nearest training clip, and three generated ones",
            goal=(
                ("continued_psnr", "continued_psnr_last", 0.0),
                ("continued_psnr", "continued_psnr_mean", 0.0),
            ),
            folder="video",
            stage="video/autoencoder REAL/video/train --valid REAL/video/held --evaluate-every 0"
            " --steps 5000",
            first_page=False,
        ),
        Row(
            "video-tokenizer",
            "video/tokenizer",
            "video",
            "clip → ids of 54 bits for 4 × 8 × 8 pixels → clip",
            (
                Measure("psnr", "PSNR, dB", baselines=(BICUBIC, MEAN_FRAME)),
                Measure(
                    "motion_error",
                    "error of frame differences",
                    baselines=(("motion_error_still", "still clip"),),
                ),
            ),
            "frames of held-out clips above their reconstructions",
            goal=(("psnr", "psnr_mean_frame", 2.0), ("psnr", "psnr_bicubic", 5.0)),
            ratios=(("motion_error", "motion_error_still", 0.7),),
            folder="video",
        ),
        Row(
            "mesh-autoencoder_compact",
            "mesh/autoencoder_compact",
            "mesh",
            "mesh → 36 bits a face → mesh (coordinates alone: 63)",
            (
                Measure("exact", "coordinates exact", share=True),
                Measure("triangles", "triangles exact", share=True),
                Measure("chamfer_bins", "Chamfer distance, bins"),
            ),
            "held-out meshes beside their reconstructions",
            goal=(("exact", "", 0.99),),
            folder="meshes",
            flags="--meshes.too-large simplify",
        ),
        Row(
            "music-mulan",
            "music/mulan",
            "music",
            "caption → recording, by search",
            (
                Measure(
                    "recall_at_10",
                    "captions whose recording is among the first ten",
                    share=True,
                    baselines=(("chance", "chance"),),
                ),
                Measure("recall_at_1", "recall at 1", share=True),
            ),
            "similarity of held-out sounds (rows) and captions (columns)",
            folder="music",
        ),
        Row(
            "speech-voicebox_medium",
            "speech/voicebox_medium",
            "speech",
            "text → speech (four synthetic voices)",
            (
                Measure(
                    "judge/cer",
                    "characters misread by a recogniser",
                    share=True,
                    baselines=(("judge/cer/recordings", "the recordings"),),
                ),
                Measure("judge/own_voice", "nearest to their own speaker", share=True),
                Measure("duration_error", "error of durations", share=True),
            ),
            "mel spectrograms of a held-out recording, its copy by the vocoder, the infilled one"
            " and speech from text",
            folder="speech",
            flags="--model.phonemes en-us",
        ),
    )
}
INTRODUCTION = """# Results

*Written by `benchmarks/results.py` from `docs/results/*.json`; do not edit.*

The recipes as they are shipped, on held-out files that people have made (pictures, clips, meshes,
music, speech) or on built-in data where it says so. A value is the mean over seeds of EMA weights,
with the lowest and the highest seed in brackets. No group of files (a picture and its parts, a
track, a sentence by several voices) is in both splits. `benchmarks/results.py train` repeats a row
and exits with 1 where it misses its goal. The JSON of a row has the versions of all packages and
the receipts of outside metrics.

The files were made smaller than the packages have them: pictures of 256 pixels, meshes of at most
1,500 faces, the middle 4.5 seconds of each piece of music (24 kHz), speech at 16 kHz, of synthetic
voices alone. The recogniser heard the saved recordings on another machine.

Rows are of several commits. In all of them and in `36c7d6c9`, `benchmarks/same_numbers.py` finds
the same settings, and after six steps of the tiny twins the same metrics.

Pictures, sounds and meshes on this page come from the files below, under their licences. All but
the rendered scores can be assembled again: `benchmarks/realdata/assemble.py`."""


class Result:
    """A row with the runs of all its seeds."""

    def __init__(self, row: Row, runs: Sequence[dict[str, Any]]) -> None:
        self.row = row
        self.runs = sorted(runs, key=lambda run: run["seed"])
        self.first = self.runs[0]

    def values(self, name: str) -> list[float]:
        if name == "chance":  # a random order of the pairs
            return [min(1.0, 10 / run["metrics"]["samples"]) for run in self.runs]
        return [run["metrics"][name] for run in self.runs if name in run["metrics"]]

    def cell(self, measure: Measure, name: str = "") -> str:
        """Mean, lowest and highest."""
        values = self.values(name or measure.name)
        if not values:
            return "–"
        mean = measure.shown(sum(values) / len(values))
        ends = [measure.shown(end) for end in (min(values), max(values))]
        return mean if len(set(ends)) == 1 else f"{mean} ({ends[0]} – {ends[1]})"

    def baselines(self, measure: Measure) -> str:
        listed = [f"{label} {self.cell(measure, name)}" for name, label in measure.baselines]
        return ", ".join(listed) or "–"

    @property
    def seconds(self) -> str:
        """Of the runs that shared the device with the fewest others; none of a resumed run."""
        timed = [run for run in self.runs if run["seconds"]]
        if not timed:
            return "–"
        fewest = min(run["beside"] for run in timed)
        spent = [sum(run["seconds"].values()) for run in timed if run["beside"] == fewest]
        return f"{sum(spent) / len(spent):.0f}{'*' if fewest else ''}"


def write_page(folder: Path) -> int:
    docs = ROOT / "docs"
    with tempfile.TemporaryDirectory() as place:
        files = unpacked(folder, Path(place))
        for name, folders in files.items():
            runs = [json.loads((f / "row.json").read_text(encoding="utf-8")) for f in folders]
            path = docs / "results" / f"{name}.json"
            before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
            seeds = {run["seed"] for run in runs}
            runs += [run for run in before if run["seed"] not in seeds]
            result = Result(ROWS[name], runs)
            path.write_text(json.dumps(result.runs, indent=1, ensure_ascii=False) + "\n")
            first = result.first["seed"]
            for shown in (folder for folder, run in zip(folders, runs) if run["seed"] == first):
                write_picture(result, shown, docs)
                write_sounds(result, shown, docs)
    write_texts(docs)
    print(docs / "results.md")
    return 0


def write_texts(docs: Path) -> None:
    """results.md and README's table, from docs/results/*.json alone."""
    results = known(docs)
    (docs / "results.md").write_text(page_text(results, docs), encoding="utf-8")
    readme = docs.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_table(text, results), encoding="utf-8")


def known(docs: Path) -> list[Result]:
    paths = ((row, docs / "results" / f"{row.name}.json") for row in ROWS.values())
    return [
        Result(row, json.loads(path.read_text(encoding="utf-8")))
        for row, path in paths
        if path.is_file()
    ]


def unpacked(folder: Path, place: Path) -> dict[str, list[Path]]:
    """The folders of the tars of each row."""
    folders: dict[str, list[Path]] = {}
    for path in sorted((folder / "results").glob("*.tar")):
        with tarfile.open(path) as tar:
            tar.extractall(place / path.stem, filter="data")
        folders.setdefault(path.stem.rpartition("-")[0], []).append(place / path.stem)
    return folders


# -- text -----------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    line = lambda cells: f"| {' | '.join(cells)} |"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def with_table(readme: str, results: Sequence[Result]) -> str:
    """README with its table, between two comments, written again."""
    body = f"<!-- results -->\n{readme_table(results)}\n<!-- /results -->"
    return re.sub(r"<!-- results -->.*?<!-- /results -->", lambda _: body, readme, flags=re.S)


def readme_table(results: Sequence[Result], *, everything: bool = False) -> str:
    rows = [
        [
            f"[{result.row.title}](docs/results.md#{result.row.name})",
            result.row.what,
            f"{(measure := result.row.measures[0]).label}: {result.cell(measure)}",
            result.baselines(measure),
            result.seconds,
        ]
        for result in results
        if result.row.first_page or everything
    ]
    return table(["room", "input → output", "held out", "for comparison", "seconds"], rows)


def page_text(results: Sequence[Result], docs: Path) -> str:
    sections = [section(result, docs) for result in results]
    summary = (
        f"## Summary\n\n{readme_table(results, everything=True).replace('docs/results.md#', '#')}"
    )
    notes = ["\\* beside other runs on the same device."] if "* |" in summary else []
    notes += ["A dash: not timed yet."] if "| – |\n" in f"{summary}\n" else []
    note = " ".join(notes)
    parts = [INTRODUCTION, summary, note, data_table(results), *sections]
    return "\n\n".join(filter(None, parts)) + "\n"


def data_table(results: Sequence[Result]) -> str:
    """A line for each set of files; the sources of a medium stand in its first line alone."""
    rows: list[list[str]] = []
    listed: set[str] = set()
    for result in results:
        counts: dict[tuple[str, str], int] = {}
        splits = result.first["data"].values()
        for split in splits:
            for source, licence, count in split["sources"]:
                counts[source, licence] = counts.get((source, licence), 0) + count
        if not counts:
            continue
        files = [f"{split['files']:,} (`{split['digest']}`)" for split in splits]
        size = f"{sum(split['bytes'] for split in splits) / 1e6:.1f}"
        sources = "; ".join(
            f"{name} {n:,} ({licence.replace('|', '/')})" for (name, licence), n in counts.items()
        )
        row = [result.row.folder, *files, size]
        if all(row != known[: len(row)] for known in rows):
            rows.append([*row, "the same" if row[0] in listed else sources])
        listed.add(row[0])
    head = ["medium", "training files (digest)", "held out (digest)", "MB"]
    return "## Data\n\n" + table([*head, "sources: files (licence)"], rows)


def section(result: Result, docs: Path) -> str:
    facts, row = result.first, result.row
    commits = ", ".join(f"`{name}`" for name in sorted({run["commit"] for run in result.runs}))
    resumed = [str(run["seed"]) for run in result.runs if run.get("resumed")]
    stopped = f" Stopped and resumed on the way: seed {', '.join(resumed)}." if resumed else ""
    about = (
        f"{facts['steps']:,} steps of {facts['batch']} on one {facts['device']} "
        f"({facts['precision']}, torch {facts['versions']['torch']}), commit {commits}; "
        f"{facts['samples']['train']:,} training and {facts['samples']['valid']:,} held-out "
        f"samples; {len(result.runs)} seed{'s' if len(result.runs) > 1 else ''}.{stopped} "
        f"[JSON](results/{row.name}.json)."
    )
    measured = lambda measure: result.values(measure.name)
    metrics = table(
        ["metric", "value", "for comparison"],
        ([m.label, result.cell(m), result.baselines(m)] for m in row.measures if measured(m)),
    )
    picture = f"images/results-{row.name}.png"
    caption = f"{row.picture[0].upper()}{row.picture[1:]}."
    image = f"![{row.recipe}: {row.picture}]({picture})\n\n*{caption}*"
    parts = [
        f"## {row.name}",
        f"```bash\n{chr(10).join(facts['commands'])}\n```",
        about,
        metrics,
        image if (docs / picture).is_file() else "",
        players(result, docs),
    ]
    return "\n\n".join(filter(None, parts))


# -- pictures and sounds --------------------------------------------------------------------------


def write_picture(result: Result, folder: Path, docs: Path) -> None:
    """The first picture of the last exhibits."""
    for file in sorted(folder.glob("*.png"))[:1]:
        with Image.open(file) as opened:
            sheet = opened.convert("RGB")
        sheet = sheet.crop((0, 0, sheet.width, min(sheet.height, 2 * sheet.width)))
        sheet.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
        target = docs / "images" / f"results-{result.row.name}.png"
        sheet.quantize(256).save(target, optimize=True)


def write_sounds(result: Result, folder: Path, docs: Path) -> None:
    """OGG copies of the sounds of the first exhibits."""
    import soundfile

    groups: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.wav")):
        groups.setdefault(sound_name(file)[0], []).append(file)
    for files in list(groups.values())[:SHOWN_SOUNDS]:
        for file in files:
            name, kind = sound_name(file)
            samples, rate = soundfile.read(file, dtype="float32")
            target = docs / "sounds" / f"results-{result.row.name}-{name}-{kind}.ogg"
            soundfile.write(target, samples, rate, format="OGG", subtype="VORBIS")


def sound_name(file: Path) -> tuple[str, str]:
    """Number and kind: speech-0-from-text.wav."""
    name, _, kind = file.stem.partition("-")[2].partition("-")
    return name, kind or "recording"


def players(result: Result, docs: Path) -> str:
    prefix = f"results-{result.row.name}-"
    sounds: dict[str, dict[str, str]] = {}
    for path in sorted((docs / "sounds").glob(f"{prefix}*.ogg")):
        name, _, kind = path.stem.removeprefix(prefix).partition("-")
        link = f"sounds/{path.name}"
        sounds.setdefault(name, {})[kind] = (
            f'<audio controls preload="none" src="{link}"></audio> [{kind}]({link})'
        )
    if not sounds:
        return ""
    kinds = [kind for kind in KINDS if any(kind in row for row in sounds.values())]
    rows = [[row.get(kind, "–") for kind in kinds] for row in sounds.values()]
    return table([kind.replace("-", " ") for kind in kinds], rows)

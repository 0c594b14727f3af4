"""Results on real data: train recipes on folders of files, judge them, and write docs/results.md.

    python benchmarks/results.py train image/vqgan … --data REAL --out DIR [--at-once]
    python benchmarks/results.py train --data REAL --out DIR --tiny --steps 20      all, on a CPU
    python benchmarks/results.py page DIR

REAL has a folder for each medium (images, video, meshes, music, speech) with `train` and `held`,
each with a metadata.jsonl. A row runs the commands that its page shows, and leaves
DIR/results/ROW.tar: row.json (commands, commit, machine, time, metrics, receipts, data), the log,
and the last exhibits.
`page` reads these, and lines of benchmarks/learning.py in DIR/records/*.jsonl; rows and tables that
DIR does not have stay as they are.
"""

import argparse
import hashlib
import json
import math
import shlex
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning import REAL
from provenance import commit, machine
from results_page import write_page

from quintet import rooms
from quintet.judges import choosing

MAX_TAR_BYTES = 12 << 20


@dataclass(frozen=True)
class Row:
    """One recipe on one folder."""

    recipe: str
    folder: str
    """Of the medium, below REAL."""
    judges: tuple[str, ...]
    """Those that need weights are asked where the weights are."""
    settings: str = ""
    """Flags where the recipe's own settings do not fit the data."""
    steps: int | None = None
    """The same of its steps."""
    variant: str = ""
    """The recipe, where it is another than that of the row."""
    tiny: str = ""
    """The same, of the tiny recipe."""
    stage: tuple[str, str] | None = None
    """A flag that takes the run of another row."""

    @property
    def name(self) -> str:
        return self.recipe.replace("/", "-")

    @property
    def medium(self) -> str:
        return self.recipe.split("/")[0]

    @property
    def working_judges(self) -> list[str]:
        known = choosing.of_medium(self.medium)
        return [name for name in self.judges if known[name]().problem() is None]


SIMPLIFY = "--meshes.too-large simplify"
"""Few real meshes are as small as the recipes take them."""
ROWS = {
    row.recipe: row
    for row in (
        Row(
            "image/vqgan",
            "images",
            ("psnr", "ssim", "lpips_alex", "fid"),
            settings=REAL["image/vqgan"].flags,
            steps=REAL["image/vqgan"].steps,
        ),
        Row(
            "video/tokenizer",
            "video",
            ("psnr", "ssim", "lpips_alex", "temporal", "temporal_relative", "fvd"),
            settings=REAL["video/tokenizer"].flags,
            steps=REAL["video/tokenizer"].steps,
        ),
        Row(
            "mesh/autoencoder",
            "meshes",
            ("chamfer", "hausdorff", "normal_consistency", "closed_edges"),
            settings=SIMPLIFY,
            tiny=SIMPLIFY,
        ),
        Row(
            "mesh/transformer",
            "meshes",
            ("coverage", "minimum_matching", "nearest_neighbour"),
            settings=SIMPLIFY,
            tiny=SIMPLIFY,
            stage=("--autoencoder", "mesh/autoencoder"),
        ),
        Row(
            "music/mulan",
            "music",
            ("recall_at_1", "recall_at_10"),
            settings="--batch-size 256",  # fewer pieces than a batch of 512
        ),
        Row(
            "speech/voicebox",
            "speech",
            ("cer", "speaker", "own_voice", "pitch", "duration"),
            settings="--model.phonemes en-us",
            variant="speech/voicebox_medium",  # of sentences
        ),
    )
}


@dataclass
class Campaign:
    """All rows of one call."""

    data: Path
    out: Path
    commit: str
    tiny: bool = False
    steps: int | None = None
    flags: tuple[str, ...] = ()
    beside: int = 0
    """Other runs on the same device at the same time."""

    def __post_init__(self) -> None:
        self.locks = {recipe: threading.Lock() for recipe in ROWS}
        for folder in ("runs", "results", "logs"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def run_of(self, row: Row) -> Path:
        return self.out / "runs" / row.name

    def trained(self, row: Row) -> list[list[str]]:
        """Train the row unless its run is there, and the row before it; returns the commands."""
        commands = self.trained(ROWS[row.stage[1]]) if row.stage else []
        command = self.train_command(row)
        with self.locks[row.recipe]:
            if not (self.run_of(row) / "finished.json").is_file():
                begin = time.monotonic()
                self.call(row, command)
                seconds = round(time.monotonic() - begin, 1)
                facts = {"command": command, "seconds": seconds, "commit": self.commit}
                (self.run_of(row) / "finished.json").write_text(json.dumps(facts), encoding="utf-8")
        return [*commands, self.finished(row)["command"]]

    def finished(self, row: Row) -> dict[str, Any]:
        return json.loads((self.run_of(row) / "finished.json").read_text(encoding="utf-8"))

    def train_command(self, row: Row) -> list[str]:
        folder = self.data / row.folder
        recipe = f"{row.recipe}_tiny" if self.tiny else row.variant or row.recipe
        command = ["train", recipe, str(folder / "train"), "--valid", str(folder / "held")]
        if row.stage:
            command += [row.stage[0], str(self.run_of(ROWS[row.stage[1]]))]
        settings = row.tiny if self.tiny else row.settings
        command += ["--run", str(self.run_of(row)), *settings.split()]
        own = None if self.tiny else row.steps
        steps = self.steps or own or rooms.recipe_function(recipe)().steps
        command += ["--steps", str(steps), "--evaluate-every", str(math.ceil(steps / 4))]
        return [*command, *self.flags]

    def evaluate_command(self, row: Row) -> list[str]:
        return ["evaluate", str(self.run_of(row)), "--judges", ",".join(row.working_judges)]

    def call(self, row: Row, command: Sequence[str]) -> str:
        """Run `quintet …`; its output goes to the log of the row, and is returned."""
        print(shlex.join(["quintet", *command]), flush=True)
        with (self.out / "logs" / f"{row.name}.txt").open("a+", encoding="utf-8") as log:
            begin = log.seek(0, 2)
            words = [sys.executable, "-m", "quintet", *command]
            ended = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(begin)
            text = log.read()
        if ended.returncode:
            raise SystemExit(f"{shlex.join(command)}\n{text[-3000:]}")
        return text

    def measured(self, row: Row) -> Path:
        """Train, evaluate and judge a row; returns its tar."""
        commands = self.trained(row)
        finished = self.finished(row)
        begin = time.monotonic()
        evaluate = self.evaluate_command(row)
        metrics = json.loads(self.call(row, evaluate).splitlines()[-1])
        judging = round(time.monotonic() - begin, 1)
        run = self.run_of(row)
        about = json.loads((run / "config.json").read_text(encoding="utf-8"))
        reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        trained = max(report.get("seconds", 0) for report in reports)
        facts = {
            "recipe": about["recipe"],
            "commands": [self.shown(words) for words in [*commands, evaluate]],
            "commit": finished["commit"],
            **machine(run),
            "precision": about["settings"]["precision"],
            "steps": about["settings"]["steps"],
            "batch": about["global_batch"],
            "samples": about["data"],
            "beside": self.beside,
            "seconds": {
                "steps": trained,
                "train": finished["seconds"],
                "stage": self.finished(ROWS[row.stage[1]])["seconds"] if row.stage else 0.0,
                "judge": judging,
            },
            "judges": described(row),
            "metrics": metrics,
            "data": {split: folder_facts(self.data / row.folder / split) for split in SPLITS},
        }
        return pack(row, facts, run, self.out / "results")

    def shown(self, command: Sequence[str]) -> str:
        """As a reader would type it: without the paths of this machine."""
        text = shlex.join(["quintet", *command])
        return text.replace(str(self.out / "runs"), "runs").replace(str(self.data), "real")


SPLITS = ("train", "held")


def described(row: Row) -> dict[str, Any]:
    """What the judges of a row measure, for the page."""
    facts = ("about", "better", "unit")
    known = choosing.of_medium(row.medium)
    return {name: {fact: getattr(known[name], fact) for fact in facts} for name in row.judges}


def folder_facts(folder: Path) -> dict[str, Any]:
    """Number, size and digest of the files, and where they come from by their metadata."""
    lines = (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    digest, size = hashlib.sha256(), 0
    for name in sorted(row["file_name"] for row in rows):
        content = (folder / name).read_bytes()
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        size += len(content)
    sources = Counter((row["source"], row["license"]) for row in rows)
    return {
        "files": len(rows),
        "bytes": size,
        "digest": digest.hexdigest()[:16],
        "sources": [[*key, count] for key, count in sources.most_common()],
    }


def pack(row: Row, facts: dict[str, Any], run: Path, out: Path) -> Path:
    """One tar: row.json, the log, and the exhibits of the last step; the largest of them are left
    out where it would be too large."""
    exhibits = sorted((run / "exhibits").glob("step-*"))
    files = sorted(exhibits[-1].iterdir(), key=lambda file: file.stat().st_size) if exhibits else []
    files = [run / "metrics.jsonl", *(file for file in files if file.suffix != ".gif")]
    (out / f"{row.name}.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False))
    path, used = out / f"{row.name}.tar", 1 << 20
    with tarfile.open(path, "w") as tar:
        tar.add(out / f"{row.name}.json", "row.json")
        for file in files:
            used += file.stat().st_size + 1024
            if used < MAX_TAR_BYTES:
                tar.add(file, file.name)
    return path


def train(options: argparse.Namespace) -> int:
    rows = [ROWS[recipe] for recipe in options.rows or ROWS]
    campaign = Campaign(
        options.data.resolve(),
        options.out.resolve(),
        options.commit,
        options.tiny,
        options.steps,
        tuple(shlex.split(options.flags)),
        options.beside or (len(rows) - 1 if options.at_once else 0),
    )
    failed = 0
    with ThreadPoolExecutor(len(rows) if options.at_once else 1) as pool:
        for row, job in [(row, pool.submit(campaign.measured, row)) for row in rows]:
            try:
                path = job.result()
                print(f"{row.recipe}: {path} ({path.stat().st_size / 2**20:.1f} MiB)", flush=True)
            except SystemExit as error:
                failed += 1
                print(f"{row.recipe} failed: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(required=True)
    training = verbs.add_parser("train", help="train and judge rows")
    training.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; or all")
    training.add_argument("--data", type=Path, required=True, help="folder of the media")
    training.add_argument("--out", type=Path, required=True, help="runs, logs and results")
    training.add_argument("--at-once", action="store_true", help="all rows beside each other")
    training.add_argument("--beside", type=int, default=0, help="other runs on the device")
    training.add_argument("--tiny", action="store_true", help="the _tiny recipes, for a CPU")
    training.add_argument("--steps", type=int, help="instead of the recipes' own")
    training.add_argument("--flags", default="", help="further settings of all runs")
    training.add_argument("--commit", default=commit(), help="of a copy without git's history")
    training.set_defaults(run=train)
    page = verbs.add_parser("page", help="write docs/results.md")
    page.add_argument("folder", type=Path, help="OUT of train, or a folder with its results")
    page.set_defaults(run=lambda options: write_page(options.folder, list(ROWS)))
    options = parser.parse_args()
    if unknown := set(getattr(options, "rows", ())) - set(ROWS):
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    sys.exit(options.run(options))


if __name__ == "__main__":
    main()

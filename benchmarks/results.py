"""The results of the recipes as they are shipped: README's table and docs/results.md.

    python benchmarks/results.py train image/vqgan … --data REAL --out DIR --seeds 0 1 2 [--jobs 3]
    python benchmarks/results.py page DIR

REAL has a folder for each medium (images, video, meshes, music, speech) with `train` and `held`,
each with a metadata.jsonl; recipes of built-in data need none. Every run leaves
DIR/results/ROW-SEED.tar: row.json (command, commit, machine, seconds, metrics, data) and the last
exhibits. `page` reads all of them: a value is the mean over the seeds, with the lowest and the
highest. Rows and seeds that DIR does not have stay as they are. `train` ends with status 1 where a
row misses its goal.
"""

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provenance import commit, machine
from results_page import ROWS, Row, write_page

MAX_TAR_BYTES = 12 << 20


@dataclass
class Campaign:
    """The runs of one call."""

    data: Path
    out: Path
    commit: str
    beside: int
    """Other runs on the same device at the same time."""
    flags: list[str]
    locks: dict[str, threading.Lock] = field(default_factory=dict[str, threading.Lock])

    def __post_init__(self) -> None:
        self.locks = {name: threading.Lock() for name in ROWS}
        for folder in ("runs", "results", "logs"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def command(self, row: Row, seed: int) -> list[str]:
        words = ["train", row.recipe]
        if row.folder:
            folder = self.data / row.folder
            words += [str(folder / "train"), "--valid", str(folder / "held")]
        if row.stage:
            words += ["--tokenizer", str(self.out / "runs" / f"{row.name}-stage")]
        return [*words, *shlex.split(row.flags), "--seed", str(seed), *self.flags]

    def call(self, name: str, words: list[str]) -> float:
        """Train, and return the seconds; with imports, compilation and evaluation."""
        words = [*words, "--run", str(self.out / "runs" / name)]
        print(shlex.join(["quintet", *words]), flush=True)
        begin = time.monotonic()
        with (self.out / "logs" / f"{name}.txt").open("w+", encoding="utf-8") as log:
            command = [sys.executable, "-m", "quintet", *words]
            ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(0)
            if ended.returncode:
                raise SystemExit(f"{name}: {log.read()[-3000:]}")
        return round(time.monotonic() - begin, 1)

    def stage(self, row: Row) -> float:
        """Train what the row depends on, once for all seeds; its seconds."""
        name = f"{row.name}-stage"
        marker = self.out / "runs" / name / "seconds.json"
        with self.locks[row.name]:
            if not marker.is_file():
                stage = row.stage.replace("REAL", str(self.data))
                seconds = self.call(name, ["train", *shlex.split(stage)])
                marker.write_text(json.dumps(seconds), encoding="utf-8")
        return json.loads(marker.read_text(encoding="utf-8"))

    def measured(self, row: Row, seed: int) -> list[str]:
        """Train a row with a seed and pack its results; what its goal lacks."""
        name = f"{row.name}-{seed}"
        stage = self.stage(row) if row.stage else 0.0
        words = self.command(row, seed)
        seconds = self.call(name, words)
        run = self.out / "runs" / name
        about = json.loads((run / "config.json").read_text(encoding="utf-8"))
        reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        last = [r for r in reports if any(n.startswith("val/") for n in r)][-1]
        metrics = {n.removeprefix("val/"): v for n, v in last.items() if n.startswith("val/")}
        commands = [
            [
                "train",
                *shlex.split(row.stage.replace("REAL", "real")),
                "--run",
                f"runs/{row.name}-stage",
            ]
        ]
        facts: dict[str, Any] = {
            "row": row.name,
            "recipe": row.recipe,
            "seed": seed,
            "commands": [self.shown(w) for w in [*(commands if row.stage else []), words]],
            "commit": self.commit,
            **machine(run),
            "precision": about["settings"]["precision"],
            "steps": about["settings"]["steps"],
            "batch": about["global_batch"],
            "samples": about["data"],
            "beside": self.beside,
            "seconds": {"train": seconds, "stage": stage},
            "metrics": {"samples": about["data"]["valid"], **metrics},
            "receipts": last.get("receipts", {}),
            "data": folder_facts(self.data / row.folder) if row.folder else {},
        }
        pack(facts, run, self.out / "results" / f"{name}.tar")
        return row.missed(facts)

    def shown(self, words: list[str]) -> str:
        """As a reader would type it: without the paths of this machine."""
        text = shlex.join(["quintet", *words])
        return text.replace(str(self.out / "runs"), "runs").replace(str(self.data), "real")


def folder_facts(folder: Path) -> dict[str, Any]:
    """For each split: number, size, digest and origin of the files by their metadata."""
    facts: dict[str, Any] = {}
    for split in ("train", "held"):
        lines = (folder / split / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        digest, size = hashlib.sha256(), 0
        for name in sorted(row["file_name"] for row in rows):
            content = (folder / split / name).read_bytes()
            digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
            size += len(content)
        sources = Counter((row["source"], row["license"]) for row in rows)
        facts[split] = {
            "files": len(rows),
            "bytes": size,
            "digest": digest.hexdigest()[:16],
            "sources": [[*key, count] for key, count in sources.most_common()],
        }
    return facts


def pack(facts: dict[str, Any], run: Path, path: Path) -> None:
    """One tar: row.json and the exhibits of the last step, smallest first, up to a limit."""
    exhibits = sorted((run / "exhibits").glob("step-*"))
    files = sorted(exhibits[-1].iterdir(), key=lambda file: file.stat().st_size) if exhibits else []
    row = path.with_suffix(".json")
    row.write_text(json.dumps(facts, ensure_ascii=False), encoding="utf-8")
    used = row.stat().st_size
    with tarfile.open(path, "w") as tar:
        tar.add(row, "row.json")
        for file in files:
            used += file.stat().st_size + 1024
            if used < MAX_TAR_BYTES and file.suffix != ".gif":
                tar.add(file, file.name)


def train(options: argparse.Namespace) -> int:
    rows = [ROWS[name] for name in options.rows or ROWS]
    runs = [(row, seed) for row in rows for seed in options.seeds]
    campaign = Campaign(
        options.data.resolve(),
        options.out.resolve(),
        options.commit,
        options.beside + min(options.jobs, len(runs)) - 1,
        shlex.split(options.flags),
    )
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [(row, seed, pool.submit(campaign.measured, row, seed)) for row, seed in runs]
        for row, seed, job in jobs:
            try:
                missed = job.result()
            except SystemExit as error:
                missed = [f"failed: {error}"]
            failed += bool(missed)
            print(f"{row.name}, seed {seed}: {'; '.join(missed) or 'goal reached'}", flush=True)
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(required=True)
    training = verbs.add_parser("train", help="train and measure rows")
    training.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; or all")
    training.add_argument("--data", type=Path, default=Path("real"), help="folder of the media")
    training.add_argument("--out", type=Path, required=True, help="runs, logs and results")
    training.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    training.add_argument("--jobs", type=int, default=1, help="runs at once on the device")
    training.add_argument("--beside", type=int, default=0, help="other programs on the device")
    training.add_argument("--flags", default="", help="further settings of all runs, for trials")
    training.add_argument("--commit", default=commit(), help="of a copy without git's history")
    training.set_defaults(run=train)
    page = verbs.add_parser("page", help="write docs/results.md and README's table")
    page.add_argument("folder", type=Path, help="OUT of train")
    page.set_defaults(run=lambda options: write_page(options.folder))
    options = parser.parse_args()
    if unknown := set(getattr(options, "rows", ())) - set(ROWS):
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    sys.exit(options.run(options))


if __name__ == "__main__":
    main()

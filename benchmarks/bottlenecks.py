"""Bottlenecks of the image tokenizer side by side: the same recipe, pictures, seed and budget.

    python benchmarks/bottlenecks.py TRAIN HELD --recipe image/vqgan_tiny --steps 200
    python benchmarks/bottlenecks.py TRAIN HELD --seconds 60 --jobs 4 --only fsq-16 kl-8
    python benchmarks/bottlenecks.py TRAIN HELD --images.size 256 256 --model.patch-size 8

Trains the recipe once for each bottleneck on the pictures of one folder and measures the averaged
weights on those of another. Flags that are not listed here are settings of the recipe. With
--seconds runs are cut at equal training time, wherever the schedule of the learning rate stands;
without it all take the same steps. With --jobs several train at once on one device, each more
slowly: compare seconds with --jobs 1 only. Prints the rows of a Markdown table as they come, and
one line of JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from provenance import commit, machine


def fsq(*levels: int) -> list[str]:
    return ["fsq", "--model.levels", *map(str, levels)]


def codebook(name: str, bits: int) -> list[str]:
    return [name, "--model.codebook-bits", str(bits)]


def continuous(name: str, channels: int) -> list[str]:
    return [name, "--model.latent-channels", str(channels)]


BOTTLENECKS = {
    "fsq-10": fsq(8, 5, 5, 5),
    "fsq-16": fsq(8, 8, 8, 5, 5, 5),
    "fsq-18": fsq(8, 8, 8, 8, 8, 8),
    "lfq-16": codebook("lfq", 16),
    "lfq-18": codebook("lfq", 18),
    "bsq-18": codebook("bsq", 18),
    "vq-13": codebook("vq", 13),
    "kl-4": continuous("kl", 4),
    "kl-8": continuous("kl", 8),
    "kl-16": continuous("kl", 16),
    "bounded-8": continuous("bounded", 8),
}
"""Bits or channels of a position are the number in the name; fsq-10 and fsq-16 have 9.97, 15.97."""
COLUMNS = {
    "psnr": ("PSNR, dB", "{:.2f}"),
    "ssim": ("SSIM", "{:.4f}"),
    "codebook_usage": ("codes used", "{:.1%}"),
    "kl_bits": ("KL, bits per channel", "{:.2f}"),
    "latent_std": ("latent std", "{:.2f}"),
    "step": ("steps", "{:d}"),
    "seconds": ("seconds", "{:.0f}"),
}


def quintet(*words: str) -> str:
    command = [sys.executable, "-m", "quintet", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{ended.stderr[-2000:]}")
    return ended.stdout


def measured(name: str, run: Path, options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """Metrics of a new run of a bottleneck; a run cut by time is evaluated afterwards."""
    words = [options.recipe, str(options.train), "--valid", str(options.held), "--run", str(run)]
    if options.seconds:
        words += ["--minutes", str(options.seconds / 60)]
    settings = ["--evaluate-every", "0", *flags, "--model.quantiser", *BOTTLENECKS[name]]
    quintet("train", *words, *settings)
    log = run / "metrics.jsonl"
    last = json.loads(log.read_text().splitlines()[-1]) if log.exists() else {}
    found = {k.removeprefix("val/"): v for k, v in last.items() if k.startswith("val/")}
    if not found:
        found = json.loads(quintet("evaluate", str(run), "--json-line"))
    newest = max((run / "checkpoints").glob("step-*"))
    state = json.loads((newest / "state.json").read_text())
    return {**found, "step": state["step"], "seconds": state["seconds"]}


def row(name: str, metrics: dict[str, Any]) -> str:
    kind, number = name.split("-")
    cells = [kind, f"{number} {'bits' if 'codebook_usage' in metrics else 'channels'}"]
    cells += [form.format(metrics[k]) if k in metrics else "–" for k, (_, form) in COLUMNS.items()]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train", type=Path, help="folder of pictures")
    parser.add_argument("held", type=Path, help="folder of other pictures")
    parser.add_argument("--recipe", default="image/vqgan")
    parser.add_argument("--seconds", type=float, help="training time of each run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", nargs="+", choices=BOTTLENECKS, default=list(BOTTLENECKS))
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    parser.add_argument("--commit", default=commit(), help="of a copy without git's history")
    options, flags = parser.parse_known_args()
    header = ["bottleneck", "per position", *(heading for heading, _ in COLUMNS.values())]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    about = {"benchmark": "bottlenecks", "recipe": options.recipe, "flags": flags}
    about |= {"commit": options.commit, "seconds": options.seconds, "jobs": options.jobs}
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs) as pool:
        runs = {name: (options.keep or Path(place)) / name for name in options.only}
        jobs = {pool.submit(measured, n, run, options, flags): n for n, run in runs.items()}
        for job in as_completed(jobs):
            name = jobs[job]
            try:
                rows[name] = job.result()
            except (RuntimeError, OSError, ValueError) as error:
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
                continue
            about |= machine(runs[name])
            print(row(name, rows[name]), flush=True)
    print(json.dumps({**about, "rows": rows}))
    sys.exit(len(rows) < len(runs))


if __name__ == "__main__":
    main()

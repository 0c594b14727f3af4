"""Learning benchmark: train a recipe and compare its validation metrics with required values.

    python benchmarks/learning.py image/vqgan_tiny            two CPU cores, at most 3 minutes
    python benchmarks/learning.py image/vqgan_tiny --compare  also without the discriminator
    python benchmarks/learning.py image/vqgan                 one GPU, at most 4 minutes
    python benchmarks/learning.py mesh/autoencoder_tiny --keep A
    python benchmarks/learning.py mesh/transformer_tiny --flags "--autoencoder A"
    python benchmarks/learning.py image/flow_tiny --flags "--tokenizer RUN"     CPU, 5 minutes
    python benchmarks/learning.py image/flow --flags "--tokenizer RUN"      one GPU, 3 minutes
    python benchmarks/learning.py video/flow --flags "--tokenizer RUN"      one GPU, 6 minutes
    python benchmarks/learning.py image/maskgit_tiny --flags "--tokenizer RUN"  CPU, 5 minutes
    python benchmarks/learning.py video/maskgit_tiny --flags "--tokenizer RUN"  CPU, 5 minutes
    python benchmarks/learning.py image/maskgit --flags "--tokenizer RUN"   one GPU, 7 minutes
    python benchmarks/learning.py video/tokenizer             one GPU, at most 4 minutes
    python benchmarks/learning.py music/mulan                 one GPU, at most 6 minutes
    python benchmarks/learning.py speech/voicebox             one GPU, at most 7 minutes
    python benchmarks/learning.py image/vqgan --verify 3 >> results/records/image.jsonl
    python benchmarks/learning.py speech/vocoder --real TRAIN HELD   one GPU, at most 10 minutes

With `--real` the recipe is trained on files of yours with the flags, and compared with the goals,
that REAL has for it.
All metrics are of the EMA weights on validation data; the time includes imports, compilation,
evaluation and, for generators over codes, encoding; `cpu_seconds` is user and system time, for
shared machines. Exits with 1 if a requirement is missed.
With `--verify N` the log of the run is compared with a replay of N of its reports (docs/resume.md),
not counted in the time. The last line is JSON; benchmarks/results.py makes tables of such lines.
"""

import argparse
import json
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from provenance import commit, machine

# At least so much of each measure. Pictures and clips: decibels over the mean colour, over a clip's
# mean frame, over bicubic, and alone; share of codes in use. Meshes: shares of
# coordinates, of codes, of written meshes. Generated images and clips: the share that shows its
# caption. Music: shares of pairs found, and of attributes named
# right. Speech: the error of a filled span as a share of that of copying its neighbours, syllables
# that a classifier recognises, errors of durations. Waiting: the share of the time between reports
# that went by without data. Those in LIMITS are upper limits.
FLOORS: dict[str, dict[str, float]] = {
    "image/vqgan_tiny": {
        "over_mean": 6.0,
        "over_bicubic": 0.0,
        "codebook_usage": 0.5,
        "tokens_per_code": 20,
        "seconds": 180,
    },
    "image/vqgan": {
        "over_mean": 6.0,
        "over_bicubic": 3.0,
        "psnr": 29.0,
        "codebook_usage": 0.5,
        "tokens_per_code": 20,
        "seconds": 240,
    },
    "image/flow_tiny": {"agrees": 0.8, "seconds": 300},
    "image/flow": {"agrees": 0.97, "nearer": 0.56, "seconds": 190},
    "video/flow": {"agrees": 0.92, "nearer": 0.55, "seconds": 355},
    "image/maskgit_tiny": {"agrees": 0.5, "seconds": 300},
    "music/flow_tiny": {"agrees": 0.5, "seconds": 300},
    # No nearer to training pictures than held-out ones: half of 256 pairs, give or take 6 %.
    "image/maskgit": {"agrees": 0.9, "nearer": 0.56, "seconds": 420},
    "video/maskgit_tiny": {"agrees": 0.5, "seconds": 300},
    "mesh/autoencoder_tiny": {
        "within_one": 0.95,
        "exact": 0.7,
        "codebook_usage": 0.3,
        "seconds": 240,
    },
    "mesh/autoencoder": {
        "within_one": 0.995,
        "exact": 0.97,
        "codebook_usage": 0.3,
        "chamfer_bins": 0.5,
        "seconds": 300,
    },
    "mesh/autoencoder_compact_tiny": {"within_one": 0.93, "exact": 0.9, "seconds": 240},
    "mesh/autoencoder_compact": {"within_one": 0.995, "exact": 0.99, "seconds": 300},
    "mesh/transformer_tiny": {"valid": 0.8, "agrees": 0.4, "seconds": 300},
    "mesh/transformer": {"valid": 0.9, "agrees": 0.8, "seconds": 420},
    "mesh/retopology": {"valid": 0.97, "exact": 0.9, "seconds": 300},
    "music/mulan_tiny": {"recall_at_10": 0.4, "seconds": 240},  # chance is 10 in 256
    "music/mulan": {
        "recall_at_10": 0.8,
        "zero_shot_instrument": 0.9,
        "zero_shot_tempo": 0.9,
        "zero_shot_scale": 0.9,
        "seconds": 360,
    },
    "speech/voicebox_tiny": {"share_of_copying": 0.75, "seconds": 300},
    "speech/voicebox": {
        "share_of_copying": 0.5,
        "syllables": 0.8,
        "syllables_recorded": 0.95,
        "duration_error": 0.15,
        "seconds": 420,
    },
    "speech/vocoder_tiny": {"share_of_griffin_lim": 0.96, "seconds": 300},
    "speech/vocoder": {"share_of_griffin_lim": 0.9, "seconds": 600},
    "video/maskgit": {"agrees": 0.8, "seconds": 420},
    "video/tokenizer_tiny": {"over_mean": 3.0, "seconds": 240},
    "video/tokenizer": {
        "waiting": 0.05,
        "psnr": 27.0,
        "over_frame": 3.0,
        "over_bicubic": 5.0,
        "codebook_usage": 0.5,
        "tokens_per_code": 20,
        "seconds": 240,
    },
}


class Real(NamedTuple):
    steps: int
    flags: str
    floors: dict[str, float]


# Speech: a sentence each, with the names of its speakers. Goals of the other recipes on real data
# are those of benchmarks/results.py.
REAL = {
    "speech/vocoder": Real(
        20_000,
        "",
        {"share_of_mel_error": 0.5, "share_of_pitch_error": 0.5, "seconds": 600},
    ),
    "speech/voicebox_medium": Real(
        4000,
        "--model.phonemes en-us --judges cer own_voice duration",
        {
            "share_of_cer": 1.5,
            "judge/own_voice": 0.95,
            "judge/duration": 0.1,
            "duration_error": 0.2,
            "seconds": 600,
        },
    ),
}
SHARES = {
    "share_of_still": ("motion_error", "motion_error_still"),
    "share_of_mel_error": ("mel_error", "mel_error_griffin_lim"),
    "share_of_pitch_error": ("pitch_error", "pitch_error_griffin_lim"),
    "share_of_cer": ("judge/cer", "judge/cer/recordings"),
}
"""What is measured, in parts of what standing still, Griffin-Lim or the recordings have."""
LIMITS = {
    "seconds",
    "waiting",
    "chamfer_bins",
    "duration_error",
    "nearer",
    "judge/duration",
    "share_of_copying",
    "share_of_griffin_lim",
    *SHARES,
}
BARS: dict[str, dict[str, float]] = {
    "image/vqgan": {"psnr": 27.65},
    "video/tokenizer": {"psnr": 24.24},
    "mesh/transformer": {"valid": 0.957, "agrees": 0.945},
    "music/mulan": {"recall_at_10": 1.0},
    "speech/voicebox": {"share_of_copying": 0.493},
}
"""What a record of speed has to reach, as rounded: the first figures that were published."""


def train(recipe: str, folder: Path, *flags: str) -> dict[str, Any]:
    begin, used = time.monotonic(), cpu_seconds()
    command = [sys.executable, "-m", "quintet", "train", recipe, "--run", str(folder), *flags]
    subprocess.run(command, check=True)
    seconds, used = time.monotonic() - begin, cpu_seconds() - used
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if any(name.startswith("val/") for name in line)][-1]
    measured = {n.removeprefix("val/"): v for n, v in last.items() if n.startswith("val/")}
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    alarms = [e["message"] for e in events if e["message"].startswith("health:")]
    if "psnr" in measured:
        measured["over_mean"] = measured["psnr"] - measured["psnr_mean_colour"]
        measured["over_bicubic"] = measured["psnr"] - measured["psnr_bicubic"]
    if "psnr_mean_frame" in measured:
        measured["over_frame"] = measured["psnr"] - measured["psnr_mean_frame"]
    for name, (part, whole) in SHARES.items():
        if part in measured and whole in measured:
            measured[name] = measured[part] / measured[whole]
    waiting = statistics.mean(line["waiting"] for line in lines if "waiting" in line)
    clock = {"seconds": round(seconds, 1), "cpu_seconds": round(used, 1)}
    return {**clock, "alarms": alarms, "waiting": waiting, **measured}


def cpu_seconds() -> float:
    """User and system time of the programs that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def short_of(floors: dict[str, float], row: dict[str, Any]) -> list[str]:
    """Names of floors; a measure that is not there is missed."""

    def reached(name: str, least: float) -> bool:
        return name in row and (row[name] <= least if name in LIMITS else row[name] >= least)

    return [name for name, least in floors.items() if not reached(name, least)]


def misses(floors: dict[str, float], row: dict[str, Any]) -> list[str]:
    return short_of(floors, row) + (["alarms"] if row["alarms"] else [])


def verification(run: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "quintet", "replay", str(run), "--verify", str(count)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    print(output, end="", file=sys.stderr)
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", choices=dict.fromkeys((*FLOORS, *REAL)))
    parser.add_argument("--real", nargs=2, metavar=("TRAIN", "HELD"), help="folders of real data")
    parser.add_argument(
        "--compare", action="store_true", help="also train without the discriminator"
    )
    parser.add_argument("--flags", default="", help="further settings of the run")
    parser.add_argument("--keep", type=Path, help="keep the run in this folder")
    parser.add_argument("--verify", type=int, metavar="N", help="replay N reports of the log")
    parser.add_argument("--commit", default=commit(), help="of a copy without git's history")
    options = parser.parse_args()
    flags, required = [], FLOORS.get(options.recipe)
    if options.real and options.recipe in REAL:
        train_on, held = options.real
        steps, real, required = REAL[options.recipe]
        flags = [train_on, "--valid", held, "--steps", str(steps), *shlex.split(real)]
    elif options.real or required is None:
        parser.error(f"{options.recipe} has goals of {'built-in' if options.real else 'real'} data")
    flags += shlex.split(options.flags)
    with tempfile.TemporaryDirectory() as place:
        run = options.keep or Path(place) / "run"
        row = train(options.recipe, run, *flags)
        missed = misses(required, row)
        if options.compare:
            without = (*flags, "--losses.adversarial", "none")
            plain = train(options.recipe, Path(place) / "plain", *without)
            row["psnr_without_discriminator"] = plain["psnr"]
            row["sharpness_without_discriminator"] = plain["sharpness"]
            if row["psnr"] < plain["psnr"] - 0.5 or row["sharpness"] <= plain["sharpness"]:
                missed.append("discriminator")
        record: dict[str, Any] = {"commit": options.commit, **machine(run)}
        if options.verify:
            record["verification"] = verification(run, options.verify)
            missed += [] if record["verification"]["verified"] else ["verification"]
        if (bar := BARS.get(options.recipe)) and not options.real:
            rounded = {
                name: round(row[name], 3 if least <= 1 else 2) for name, least in bar.items()
            }
            record |= {"bar": bar, "reached": not short_of(bar, rounded)}
    for name, value in row.items():
        print(f"{name:26} {value}")
    print(f"floors missed: {', '.join(missed) or 'none'}")
    facts = {"benchmark": "learning", "recipe": options.recipe, "missed": missed, **record}
    data = {"data": "real", "flags": shlex.join(flags[3:])} if options.real else {}
    print(json.dumps({**facts, **data, "required": required, **row}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

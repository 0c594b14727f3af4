"""Does it learn? Trains a recipe as a user would and holds its held-out numbers against floors.

    python benchmarks/learning.py image/vqgan_tiny            two CPU cores, at most 3 minutes
    python benchmarks/learning.py image/vqgan_tiny --compare  and without the critic, for its cost
    python benchmarks/learning.py image/vqgan                 one GPU, at most 5 minutes

All numbers are of the averaged weights on held-out pictures; the clock includes imports, compiling
and evaluation. Exits with 1 where a floor is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Decibels over each picture's mean colour, over shrink-and-enlarge, and alone; share of codes in
# use; seconds.
FLOORS = {
    "image/vqgan_tiny": {"over_mean": 6.0, "over_shrink": 0.0, "psnr": 0.0, "use": 0.5, "s": 180},
    "image/vqgan": {"over_mean": 6.0, "over_shrink": 3.0, "psnr": 27.0, "use": 0.5, "s": 300},
}


def train(recipe: str, folder: Path, *flags: str) -> dict[str, Any]:
    begin = time.monotonic()
    command = [sys.executable, "-m", "quintet", "train", recipe, "--run", str(folder), *flags]
    subprocess.run(command, check=True)
    seconds = time.monotonic() - begin
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "val/psnr" in line][-1]
    measured = {n.removeprefix("val/"): v for n, v in last.items() if n.startswith("val/")}
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    alarms = [e["message"] for e in events if e["message"].startswith("health:")]
    return {"seconds": round(seconds, 1), "alarms": alarms, **measured}


def misses(recipe: str, row: dict[str, Any]) -> list[str]:
    floor = FLOORS[recipe]
    held = {
        "over_mean": row["psnr"] - row["psnr_mean_colour"] >= floor["over_mean"],
        "over_shrink": row["psnr"] - row["psnr_shrink_enlarge"] >= floor["over_shrink"],
        "psnr": row["psnr"] >= floor["psnr"],
        "use": row["codebook_use"] >= floor["use"] and row["tokens_per_code"] >= 20,
        "s": row["seconds"] <= floor["s"],
        "alarms": not row["alarms"],
    }
    return [name for name, holds in held.items() if not holds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", choices=FLOORS)
    parser.add_argument("--compare", action="store_true", help="train without the critic too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        row = train(asked.recipe, Path(place) / "run")
        missed = misses(asked.recipe, row)
        if asked.compare:
            plain = train(asked.recipe, Path(place) / "plain", "--losses.adversarial", "none")
            row["psnr_without_critic"] = plain["psnr"]
            row["sharpness_without_critic"] = plain["sharpness"]
            if row["psnr"] < plain["psnr"] - 0.5 or row["sharpness"] <= plain["sharpness"]:
                missed.append("critic")
    for name, value in row.items():
        print(f"{name:26} {value}")
    print(f"floors missed: {', '.join(missed) or 'none'}")
    print(json.dumps({"benchmark": "learning", "recipe": asked.recipe, "missed": missed, **row}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

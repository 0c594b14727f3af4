"""Whether a recipe gives the same numbers in two checkouts: a refactoring should change none.

    git worktree add ../old COMMIT
    python benchmarks/same_numbers.py ../old . image/vqgan
    python benchmarks/same_numbers.py ../old . image/flow --tokenizer runs/latents

Compares the settings of the recipe, and six steps of its tiny twin on the CPU: the digest of every
file of weights, averages and optimizers, and every metric of its reports. Metrics within 1e-6 count
as equal and are listed (an evaluation may sum in another order). Ends with status 1 where settings,
weights or metrics differ. Further flags are those of `quintet train`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FEW = ("--steps", "6", "--workers", "0", "--device", "cpu", "--seed", "3", "--log-every", "1")
FEW += ("--evaluate-every", "6")
ROUNDING = 1e-6
MEASURED = ("second", "per_", "memory", "time", "waiting", "disk", "receipts")
"""Parts of the names of what differs from run to run."""
SETTINGS = """
import dataclasses, json, sys
from quintet import rooms
recipe = dataclasses.asdict(rooms.recipe_function(sys.argv[1])())
print(json.dumps(recipe, default=str, sort_keys=True))
"""


def called(checkout: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr[-2000:]}")
    return done.stdout


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name[1:]: value}
    return {key: v for part in value for key, v in flat(value[part], f"{name}.{part}").items()}


def trained(checkout: Path, recipe: str, run: Path, flags: list[str]) -> dict[str, Any]:
    """Digests by file, and metrics by report and name."""
    called(checkout, "-m", "quintet", "train", recipe, "--run", str(run), *FEW, *flags)
    numbers: dict[str, Any] = {}
    for file in sorted(run.glob("checkpoints/*/*.safetensors")):
        numbers[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    for index, line in enumerate(lines):
        for name, value in json.loads(line).items():
            if not any(part in name for part in MEASURED):
                numbers[f"report {index}, {name}"] = value
    return numbers


def close(a: Any, b: Any) -> bool:
    numbers = isinstance(a, float) and isinstance(b, float)
    return numbers and abs(a - b) <= ROUNDING * max(abs(a), abs(b))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("recipe", help="without _tiny")
    asked, flags = parser.parse_known_args()
    checkouts = [path.resolve() for path in (asked.old, asked.new)]
    texts = [called(path, "-c", SETTINGS, asked.recipe) for path in checkouts]
    old, new = (flat(json.loads(text)) for text in texts)
    row: dict[str, Any] = {"recipe": asked.recipe, "settings": len(new)}
    row["settings_differ"] = sorted(n for n in {*old, *new} if old.get(n) != new.get(n))
    with tempfile.TemporaryDirectory() as place:
        os.environ["QUINTET_CACHE"] = f"{place}/cache"
        first, second = (
            trained(path, f"{asked.recipe}_tiny", Path(place) / str(index), flags)
            for index, path in enumerate(checkouts)
        )
    shared = sorted({*first} & {*second})
    other = [name for name in shared if first[name] != second[name]]
    row["numbers"] = len(shared)
    row["rounded"] = [name for name in other if close(first[name], second[name])]
    row["differ"] = [name for name in other if name not in row["rounded"]]
    row["in_one_alone"] = sorted({*first} ^ {*second})
    print(json.dumps(row))
    sys.exit(1 if row["settings_differ"] or row["differ"] else 0)


if __name__ == "__main__":
    main()

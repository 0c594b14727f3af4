"""Which codes should the mesh transformer use? Train it on each autoencoder for equal minutes.

    python benchmarks/mesh_codes.py --seconds 100                        built-in meshes
    python benchmarks/mesh_codes.py --seconds 100 --data TRAIN --valid HELD
    python benchmarks/mesh_codes.py --codes present --seconds 240        one of them

Each transformer gets `--seconds` of training after its codes are computed, and as many steps as fit
into them: the speed is measured on `--probe` steps first, so that the learning rate ends at zero.
A line of JSON for each: bits per face, exact coordinates of the autoencoder, validity and agreement
of generated meshes (agreement needs the captions of built-in meshes).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import commit, machine

CODES = {
    "present": ("mesh/autoencoder", ()),
    "compact": ("mesh/autoencoder_compact", ()),
    "compact_1536": (
        "mesh/autoencoder_compact",
        ("--model.cell-bits", "3", "--model.pointers", "8", "64", "128"),
    ),
}


def train(recipe: str, run: Path, *flags: object) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "quintet", "train", recipe, "--run", run, *flags]
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def validation(lines: list[dict[str, Any]]) -> dict[str, float]:
    last = [line for line in lines if "val/loss" in line][-1]
    return {n.removeprefix("val/"): v for n, v in last.items() if n.startswith("val/")}


def steps_in(seconds: float, lines: list[dict[str, Any]]) -> int:
    """Steps that fit, by the speed between the middle and the last report."""
    timed = [line for line in lines if "seconds" in line and "val/loss" not in line]
    middle, last = timed[len(timed) // 2], timed[-1]
    rate = (last["step"] - middle["step"]) / (last["seconds"] - middle["seconds"])
    return max(100, int(seconds * rate))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--codes", nargs="+", default=[*CODES], choices=CODES)
    parser.add_argument("--seconds", type=float, default=100, help="training of each transformer")
    parser.add_argument("--probe", type=int, default=400, help="steps that measure the speed")
    parser.add_argument("--autoencoder-steps", type=int, default=300)
    parser.add_argument("--tiny", action="store_true", help="the recipes for a CPU")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--commit", default=commit())
    options = parser.parse_args()
    suffix = "_tiny" if options.tiny else ""
    data = [options.data, "--meshes.too-large", "simplify"] if options.data else []
    data += ["--valid", options.valid] if options.valid else []
    for name in options.codes:
        recipe, flags = CODES[name]
        with tempfile.TemporaryDirectory() as folder:
            place, few = Path(folder), ("--save-every", 0, "--evaluate-every", 0)
            steps = ("--steps", options.autoencoder_steps)
            coder = place / "codes"
            coded = validation(train(recipe + suffix, coder, *data, *flags, *steps))
            stage = (*data, "--autoencoder", coder, "--compile", "off")
            transformer = "mesh/transformer" + suffix
            probe = (*few, "--steps", options.probe, "--log-every", options.probe // 8)
            lines = train(transformer, place / "probe", *stage, *probe, "--generation.count", 0)
            count = steps_in(options.seconds, lines)
            run = place / "run"
            shown = ("--save-every", count, "--evaluate-every", count)
            made = validation(train(transformer, run, *stage, "--steps", count, *shown))
            record = {"benchmark": "mesh_codes", "codes": name, "commit": options.commit}
            record |= {"steps": count, "seconds": options.seconds, **machine(run)}
            record |= {k: coded[k] for k in ("bits_per_face", "distinct_bits_per_face", "exact")}
            names = ("valid", "agrees", "closed", "loss", "nearest_generated", "nearest_validation")
            record |= {k: made[k] for k in names if k in made}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

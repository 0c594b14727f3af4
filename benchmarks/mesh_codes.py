"""Which codes should the mesh transformer use? Train it on each autoencoder for equal minutes.

    python benchmarks/mesh_codes.py --seconds 100                        built-in meshes
    python benchmarks/mesh_codes.py --seconds 100 --data TRAIN --valid HELD
    python benchmarks/mesh_codes.py --codes present --seconds 240        one of them
    python benchmarks/mesh_codes.py --tiny --seconds 60 --probe 16 --autoencoder-steps 20

Each transformer gets `--seconds` of training after its codes are computed, and as many steps as fit
into them: the speed is measured on `--probe` steps first, so that the learning rate ends at zero.
A line of JSON for each: bits per face, exact coordinates of the autoencoder, validity and agreement
of generated meshes (agreement needs the captions of built-in meshes), seconds that the steps took;
and before it the autoencoder's part alone.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command import quintet
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
    quintet("train", recipe, "--run", run, *flags)
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


def rows_of(
    name: str, settings: list[str], place: Path, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    (recipe, flags), suffix = CODES[name], "_tiny" if options.tiny else ""
    coder, run = place / "codes", place / "run"
    few = ("--save-every", 0, "--evaluate-every", 0)
    steps = ("--steps", options.autoencoder_steps, *few)
    coded = validation(train(recipe + suffix, coder, *settings, *flags, *steps))
    row: dict[str, Any] = {"benchmark": "mesh_codes", "codes": name, "commit": options.commit}
    row |= {k: coded[k] for k in ("bits_per_face", "distinct_bits_per_face", "exact")}
    yield row
    transformer = "mesh/transformer" + suffix
    stage = ("--autoencoder", coder, "--compile", "off", *shlex.split(options.flags))
    probe = ("--steps", options.probe, "--log-every", options.probe // 8, "--generation.count", 0)
    lines = train(transformer, place / "probe", *settings, *stage, *few, *probe)
    count = steps_in(options.seconds, lines)
    lines = train(transformer, run, *settings, *stage, *few, "--steps", count)
    seconds = max(line["seconds"] for line in lines if "seconds" in line)
    row |= {"steps": count, "seconds": round(seconds, 1), **machine(run)}
    made = validation(lines)
    names = ("valid", "agrees", "closed", "loss", "nearest_generated", "nearest_validation")
    yield row | {k: made[k] for k in names if k in made}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--codes", nargs="+", default=[*CODES], choices=CODES)
    parser.add_argument("--seconds", type=float, default=100, help="training of each transformer")
    parser.add_argument("--probe", type=int, default=400, help="steps that measure the speed")
    parser.add_argument("--autoencoder-steps", type=int, default=300)
    parser.add_argument("--tiny", action="store_true", help="the recipes for a CPU")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--valid", type=Path)
    parser.add_argument("--flags", default="", help="further settings of the transformers")
    parser.add_argument("--commit", default=commit())
    options = parser.parse_args()
    settings = [options.data, "--meshes.too-large", "simplify"] if options.data else []
    settings += ["--valid", options.valid] if options.valid else []
    failed = False
    for name in options.codes:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for row in rows_of(name, settings, Path(folder), options):
                    print(json.dumps(row), flush=True)
            except (subprocess.CalledProcessError, LookupError, OSError) as error:
                failed = True
                print(f"{name} failed: {error!r}", file=sys.stderr, flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

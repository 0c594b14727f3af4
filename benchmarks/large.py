"""The `_large` recipes on this machine: trained by the command line, stopped, resumed, and compared
with the doctor's plan.

    python benchmarks/large.py [RECIPE …] [--steps 300] [--seconds 100]
    python benchmarks/large.py mesh/transformer_large --autoencoder runs/codes
    python benchmarks/large.py --plan
    python benchmarks/large.py image/vqgan_tiny --steps 20 --seconds 60 --flags "--batch-size 4"

A recipe is trained as it is, but with its discriminators on from the first step. Half-way through
the steps or the seconds it is stopped by SIGTERM and resumed. The rate is the median of the faster
half of the reports since then: others are of steps in which kernels are chosen or compiled.
Built-in meshes have at most 250 faces and built-in utterances at most 5 seconds, so that files of
the full size are written and trained on: tori of 600 to 800 faces, and utterances in a row.
One JSON line for each recipe; the exit status is 1 if one failed.
"""

import argparse
import json
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import machine

from quintet import rooms
from quintet.media.audio import write_wav
from quintet.media.meshes.files import write_mesh
from quintet.mesh.solids import Torus, part_mesh
from quintet.speech import voices

LARGE = [name for name in rooms.names() if "_large" in name]
QUINTET = [sys.executable, "-m", "quintet"]
FILES = 256
SECONDS_OF_SPEECH = 11.5
"""At least; the last utterance takes up to 4.4 seconds more."""


# -- data of the full size ------------------------------------------------------------------------


def data_of(name: str, place: Path) -> list[str]:
    """The folder to train on, where built-in samples are smaller than those of a real project."""
    write = {"mesh": write_meshes, "speech": write_speech}.get(name.partition("/")[0])
    if write is None or "_large" not in name:
        return []
    folder = place / write.__name__
    if not folder.exists():
        folder.mkdir()
        rows = write(folder, random.Random(0))
        lines = [json.dumps({"file_name": file, "text": text}) for file, text in rows]
        (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return [str(folder)]


def write_meshes(folder: Path, chance: random.Random) -> list[tuple[str, str]]:
    rows = []
    for number in range(FILES):
        across = chance.randint(12, 18)
        around = chance.randint(300, 400) // across
        width, height = chance.uniform(0.15, 0.3), chance.uniform(0.1, 0.5)
        points, faces = part_mesh(Torus(around, across, 0.6, width, height))
        write_mesh(folder / f"{number}.ply", points, faces)
        rows.append((f"{number}.ply", f"a {'thick' if width > 0.22 else 'thin'} ring"))
    return rows


def write_speech(folder: Path, chance: random.Random) -> list[tuple[str, str]]:
    rows, rate = [], 24_000
    for number in range(FILES):
        sounds, texts = [], []
        while sum(map(len, sounds)) < SECONDS_OF_SPEECH * rate:
            utterance = voices.compose(chance.randrange(10**6), 0)
            sounds.append(voices.speak(utterance, rate))
            texts.append(utterance.text)
        write_wav(folder / f"{number}.wav", np.concatenate(sounds), rate)
        rows.append((f"{number}.wav", " ".join(texts)))
    return rows


# -- a run ----------------------------------------------------------------------------------------


def reports(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [row for row in rows if "samples_per_second" in row]


def last_step(run: Path) -> int:
    return max((row["step"] for row in reports(run)), default=0)


class Memory:
    """The most GiB of the GPU in use, asked for now and then."""

    def __init__(self) -> None:
        self.peak = 0.0
        self.before = self._used()  # that of this process, which asks

    def _used(self) -> float:
        if not torch.cuda.is_available():
            return 0.0
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30

    def look(self) -> None:
        self.peak = max(self.peak, self._used() - self.before)


def train_until(command: list[str], run: Path, step: int, seconds: float, memory: Memory) -> int:
    """Runs a command until a report of the step or the end of the time, stops it by SIGTERM, and
    returns its exit status."""
    log = run.with_suffix(".log")
    with log.open("a") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end and last_step(run) < step:
            time.sleep(0.5)
            memory.look()
        process.send_signal(signal.SIGTERM)
        status = process.wait(120)
    if status not in (0, 128 + signal.SIGTERM):
        print("\n".join(log.read_text().splitlines()[-15:]), file=sys.stderr)
    return status


def flags_of(name: str, asked: argparse.Namespace) -> list[str]:
    gan = hasattr(rooms.recipe_function(name)(), "discriminator_optim")
    early = ["--losses.adversarial-from", "0"] if gan else []
    return [*early, *shlex.split(asked.flags)]


def stage_of(name: str, data: list[str], asked: argparse.Namespace, place: Path) -> list[str]:
    """A trained autoencoder for a recipe that needs one: that of an earlier row, or a short run."""
    if not rooms.recipe_function(name)().stages:
        return []
    if asked.autoencoder is None:
        maker = f"mesh/autoencoder{name[len('mesh/transformer') :]}"
        run = place / maker.replace("/", "-")
        if not run.exists():
            short = ["--steps", "20", "--evaluate-every", "0", "--meshes.valid-limit", "8"]
            command = [*QUINTET, "train", maker, *data, "--run", str(run), *short]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        asked.autoencoder = str(run)
    return ["--autoencoder", asked.autoencoder]


def doctor(name: str, data: list[str], flags: list[str]) -> "subprocess.Popen[str]":
    command = [*QUINTET, "doctor", name, *data, "--plan", "h200", "--gpus", "8", "--json-line"]
    return subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True)


def plan_of(name: str, asked: argparse.Namespace, place: Path) -> dict[str, Any]:
    """The plan of the whole run, discriminators from their own step on."""
    found = doctor(name, data_of(name, place), shlex.split(asked.flags)).communicate()[0]
    plan = json.loads(found.splitlines()[-1])
    return {
        "recipe": name,
        "parameters_m": round(sum(plan["parameters"].values()) / 1e6, 1),
        **{name: round(plan[name] / 2**30, 1) for name in ("peak", "checkpoint")},
        **{k: round(plan[k], 1) for k in ("samples_per_second", "hours", "hours_on_gpus")},
    }


def row_of(name: str, asked: argparse.Namespace, place: Path) -> dict[str, Any]:
    data, run, memory = data_of(name, place), place / name.replace("/", "-"), Memory()
    flags = [*flags_of(name, asked), *stage_of(name, data, asked, place)]
    planning = doctor(name, data, flags)  # while it trains
    train = [*QUINTET, "train", name, *data, "--run", str(run), "--log-every", "10", *flags]
    begin = time.monotonic()
    statuses = [train_until(train, run, asked.steps // 2, 0.6 * asked.seconds, memory)]
    stopped = last_step(run)
    left = asked.seconds - (time.monotonic() - begin)
    resume = [*QUINTET, "resume", str(run)]
    statuses.append(train_until(resume, run, asked.steps, left, memory))
    plan = json.loads(planning.communicate()[0].splitlines()[-1])
    rows = reports(run)
    later = [row for row in rows if row["step"] > stopped]
    rates = sorted(row["samples_per_second"] for row in later or rows)
    rate = statistics.median(rates[len(rates) // 2 :]) if rates else 0.0
    loss = next((key for key in (rows[0] if rows else {}) if key.endswith("/loss")), "loss")
    return {
        "benchmark": "large",
        "recipe": name,
        "parameters_m": round(sum(plan["parameters"].values()) / 1e6, 1),
        "gib": round(memory.peak, 1),
        "gib_planned": round(plan["peak"] / 2**30, 1),
        "samples_per_second": round(rate, 1),
        "planned_samples_per_second": round(plan["samples_per_second"], 1),
        "measured_over_planned": round(rate / plan["samples_per_second"], 2),
        "waiting": rows[-1]["waiting"] if rows else None,
        "steps": last_step(run),
        "loss": [rows[0][loss], rows[-1][loss]] if rows else None,
        "stopped_at": stopped,
        "resumed": bool(later) and all(status in (0, 143) for status in statuses),
        "seconds": round(time.monotonic() - begin, 1),
        **machine(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=LARGE)
    parser.add_argument("--steps", type=int, default=300, help="stop after so many steps")
    parser.add_argument("--seconds", type=float, default=100.0, help="time limit of a recipe")
    parser.add_argument("--autoencoder", help="a trained run, for mesh/transformer_large")
    parser.add_argument("--plan", action="store_true", help="plan only: needs no GPU")
    parser.add_argument("--flags", default="", help="further flags of train")
    asked = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as place:
        for name in asked.recipes:
            row = (plan_of if asked.plan else row_of)(name, asked, Path(place))
            print(json.dumps(row), flush=True)
            failed = failed or row.get("resumed") is False
    sys.exit(failed)


if __name__ == "__main__":
    main()

"""The `_large` recipes on this machine: trained by the command line, stopped and resumed.

    python benchmarks/large.py [RECIPE …] [--steps 200] [--seconds 100]
    python benchmarks/large.py mesh/transformer_large --stage runs/codes
    python benchmarks/large.py image/vqgan_tiny --steps 20 --seconds 60 --flags "--batch-size 4"

A recipe is trained as it is, but with its discriminators on and its networks compiled from the
first step, and a short warm-up, so that a few steps show whether its loss falls. It is stopped by
SIGTERM at half of the steps or a quarter of the seconds after its first report, and resumed alone:
memory and speed are of that part. Compiling takes most of the time, and has filled a cache by then.
The speed is the median of the faster half of the reports since the resumption, without the time
spent waiting for data: others are of steps in which kernels are chosen.
Built-in meshes have at most 250 faces and built-in utterances at most 5 seconds, so that files of
the full size are written and trained on: tori of 600 to 800 faces, and utterances in a row.
One JSON line for each recipe; the exit status is 1 if one failed, did not resume, or if its loss
did not fall by a hundredth, of a contrastive recipe below that of guessing.
"""

import argparse
import json
import math
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
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
START_SECONDS = 240.0
"""At most until the first report: imports, data, kernels and compilation."""
FILES = 256
CHECKS = ("falls", "resumed")
SAMPLES = {"image": "images", "mesh": "meshes", "video": "videos"}
"""Data settings of rooms with recipes that need a frozen model."""
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
        end = time.monotonic() + 20
        while used() > OWN + 0.5 and time.monotonic() < end:  # of a process that has just ended
            time.sleep(0.1)

    def look(self) -> None:
        self.peak = max(self.peak, used() - OWN)


def used() -> float:
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


OWN = used()
"""GiB of this process, which asks."""


def train_for(
    command: list[str], run: Path, steps: int, seconds: float, memory: Memory | None, save: bool
) -> None:
    """Runs a command until a report after so many steps, or for so long after its first report."""
    log, before = run.with_suffix(".log"), last_step(run)
    with log.open("a") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        reported = False
        while process.poll() is None and time.monotonic() < end and last_step(run) < before + steps:
            time.sleep(0.2)
            if memory is not None:
                memory.look()
            if not reported and last_step(run) > before:
                reported, end = True, time.monotonic() + seconds
        failed = process.poll() not in (None, 0)
        process.send_signal(signal.SIGTERM if save else signal.SIGKILL)
        status = process.wait(120)
    if failed or last_step(run) == before or (save and status not in (0, 128 + signal.SIGTERM)):
        raise RuntimeError("\n".join(log.read_text().splitlines()[-15:]))


def flags_of(name: str, asked: argparse.Namespace) -> list[str]:
    recipe = rooms.recipe_function(name)()
    gan = hasattr(recipe, "discriminator_optim")
    # Tokenizers are captured as they are, the others faster when compiled.
    early = ["--losses.adversarial-from", "0"] if gan else ["--compile", "on"]
    # In 20 steps of warm-up, towers of 14 blocks collapse: all pairs are alike, for good.
    warm = asked.steps // 2 if chance_of(name) < math.inf else 20
    early += ["--optim.warmup-steps", str(warm), "--log-every", "5"]
    return [*early, *shlex.split(asked.flags)]


class Trial:
    """One recipe, begun and then resumed."""

    def __init__(self, name: str, asked: argparse.Namespace, place: Path) -> None:
        self.name, self.asked, self.place = name, asked, place
        self.run = place / name.replace("/", "-")

    def begin(self) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        data = data_of(self.name, self.place)
        flags = flags_of(self.name, self.asked) + self.stage(data)
        train = [*QUINTET, "train", self.name, *data, "--run", str(self.run), *flags]
        steps, seconds = self.asked.steps // 2, self.asked.seconds / 4
        train_for(train, self.run, steps, seconds, None, save=True)
        self.before = reports(self.run)

    def stage(self, data: list[str]) -> list[str]:
        """A frozen model for a recipe that needs one: that of another row, or of a short run. Its
        codes of all data would take longer than the steps, so built-in data are few."""
        stages = rooms.recipe_function(self.name)().stages
        if not stages:
            return []
        ((setting, maker),) = stages.items()
        sized = maker + self.name[self.name.rindex("_") :]
        maker = sized if sized in rooms.names() else maker
        samples = SAMPLES[maker.partition("/")[0]]
        few = [f"--{samples}.builtin-count", "1024", f"--{samples}.valid-limit", "8"]
        run = self.place / maker.replace("/", "-")
        if self.asked.stage:
            run = self.asked.stage
        elif not run.exists():
            short = ["--steps", "20", "--evaluate-every", "0", *few]
            command = [*QUINTET, "train", maker, *data, "--run", str(run), *short]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [f"--{setting}", str(run), *few]

    def finish(self) -> dict[str, Any]:
        """Resumes it, and says how it went."""
        memory, asked = Memory(), self.asked
        begun = time.monotonic()
        resume = [*QUINTET, "resume", str(self.run)]
        train_for(resume, self.run, asked.steps // 2, asked.seconds, memory, save=False)
        rows = reports(self.run)
        stopped, later = self.before[-1]["step"], rows[len(self.before) :]
        rates = sorted(r["samples_per_second"] / max(1 - r["waiting"], 0.01) for r in later)
        rate = statistics.median(rates[len(rates) // 2 :]) if rates else 0.0
        losses = [key for key in rows[0] if key.endswith(("/l1", "/loss"))]
        loss = min(losses, key=lambda key: key.endswith("/loss"))  # of a GAN, the reconstruction's
        few = max(1, len(rows) // 4)
        first, last = (statistics.mean(r[loss] for r in part) for part in (rows[:few], rows[-few:]))
        least = min(first, chance_of(self.name))
        return {
            "benchmark": "large",
            "recipe": self.name,
            "gib": round(memory.peak, 1),
            "samples_per_second": round(rate, 1),
            "waiting": round(statistics.mean(r["waiting"] for r in later or rows), 3),
            "steps": last_step(self.run),
            "loss": [round(first, 4), round(last, 4)],
            "falls": last < 0.99 * least,
            "stopped_at": stopped,
            "resumed": bool(later) and later[0]["step"] > stopped,
            "seconds": round(time.monotonic() - begun, 1),
            **machine(self.run),
        }


def chance_of(name: str) -> float:
    """The loss of a contrastive model that tells nothing apart: it falls that far by itself."""
    recipe = rooms.recipe_function(name)()
    contrastive = name.startswith("music/mulan")
    return math.log(recipe.batch_size * recipe.accumulate) if contrastive else math.inf


def attempt(name: str, function: Callable[[], Any]) -> Any:
    """A recipe that fails must not take the others with it."""
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        return {"benchmark": "large", "recipe": name, "error": str(error)[-600:]}


def rows_of(asked: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    staged = lambda name: bool(rooms.recipe_function(name)().stages)
    names = sorted(asked.recipes, key=staged)  # after those that they need
    for trial in (Trial(name, asked, place) for name in names):
        yield attempt(trial.name, trial.begin) or attempt(trial.name, trial.finish)
        if not trial.name.startswith("mesh/autoencoder"):  # it is needed later
            shutil.rmtree(trial.run, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=LARGE)
    parser.add_argument("--steps", type=int, default=200, help="stop after so many steps")
    parser.add_argument("--seconds", type=float, default=100.0, help="of steps once resumed")
    parser.add_argument("--stage", help="a trained run for the setting that needs one")
    parser.add_argument("--flags", default="", help="further flags of train")
    asked = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as place:
        for row in rows_of(asked, Path(place)):
            print(json.dumps(row), flush=True)
            failed = failed or "error" in row or not all(row.get(n, True) for n in CHECKS)
    sys.exit(failed)


if __name__ == "__main__":
    main()

"""The models that travel with the package: train them, and pack them into src/quintet/ready.

    python benchmarks/ready.py train --out DIR            all, each in a process of its own
    python benchmarks/ready.py train mesh --out DIR --jobs 2 --device cpu
    python benchmarks/ready.py pack DIR                   measure on this CPU, and write the cards
    python benchmarks/ready.py pack DIR image video       of some; the others stay as they are

`train` runs the commands below in DIR, each after those that it needs, and leaves DIR/NAME.tar: the
export in half precision, config.json and the log of the run, and facts.json (command, commit,
seconds). A run that has ended is not repeated. `pack` reads these files alone: a GPU machine can
train and another can pack. The metrics of a card are those of the packed weights in fp32 on a CPU;
`quick` ones are of a few samples, with the settings beside them, for a test of seconds.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provenance import ROOT, commit, machine

from quintet import rooms
from quintet.engine.models import ready
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import updated
from quintet.files import digest_of, write_json
from quintet.suggest import command

MAX_TAR_BYTES = 16 << 20
MAX_BYTES = 25_000_000
"""Of all models together."""
FILES = ("config.json", "model.safetensors")
"""Of an export, what is packed."""


@dataclass(frozen=True)
class Ready:
    """A recipe and its flags, as typed in the folder that holds runs/."""

    recipe: str
    flags: str = ""
    needs: str = ""
    """The frozen stage: another of them."""
    quick: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the quick metrics."""
    example: str = ""
    """Of a model that makes nothing alone."""


FEW = {"generation.count": 4, "generation.reference_count": 16}
# The autoencoders of figures: docs/image.md and docs/video.md. Captions of either have 25 words,
# which differ in a table of 512; one of 8192 takes two megabytes more. Dependencies come first.
MODELS = {
    "image-tokenizer": Ready(
        "image/autoencoder_tiny",
        "--images.builtin figure --steps 4000",
        quick={"images.valid_limit": 8},
    ),
    "video-tokenizer": Ready(
        "video/autoencoder_tiny",
        "--videos.builtin figure --videos.frames 5 --videos.size 48 48 --steps 4000",
        quick={"videos.valid_limit": 4},
    ),
    "mesh-autoencoder": Ready("mesh/autoencoder_tiny", quick={"meshes.valid_limit": 16}),
    "image": Ready(
        "image/flow_tiny",
        "--tokenizer runs/image-tokenizer --model.text-words 512 --steps 10000",
        "image-tokenizer",
        {"images.builtin_count": 16, "images.valid_limit": 4, **FEW},
    ),
    "video": Ready(
        "video/flow_tiny",
        "--tokenizer runs/video-tokenizer --model.text-words 512 --steps 10000",
        "video-tokenizer",
        {"videos.builtin_count": 16, "videos.valid_limit": 4, **FEW},
    ),
    "mesh": Ready(
        "mesh/transformer_tiny",
        "--autoencoder runs/mesh-autoencoder",
        "mesh-autoencoder",
        {"meshes.builtin_count": 16, "meshes.valid_limit": 4, **FEW},
    ),
    "music": Ready("music/mulan_tiny", quick={"sounds.valid_limit": 16}),
    "speech": Ready(
        "speech/voicebox_tiny", quick={"recordings.valid_limit": 4, "sampling.count": 1}
    ),
    "vocoder": Ready(
        "speech/vocoder_tiny",
        quick={"recordings.valid_limit": 4},
        example="sample ready/speech --vocoder ready/vocoder --text 'ba do ki' --out spoken.wav",
    ),
}


def words_of(name: str, more: str = "") -> list[str]:
    model = MODELS[name]
    words = ["quintet", "train", model.recipe, *shlex.split(model.flags), "--run", f"runs/{name}"]
    return [*words, *shlex.split(more)]


@dataclass(frozen=True)
class Training:
    out: Path
    commit: str
    flags: str
    """Further flags of all runs, for a try."""
    environment: dict[str, str]

    def run(self, name: str, needed: Future[Path] | None) -> Path:
        """Train a model, and put what `pack` needs into a tar."""
        if needed is not None:
            needed.result()
        run, facts = self.out / "runs" / name, self.out / "runs" / f"{name}.json"
        if not facts.is_file():
            words, begin = words_of(name, self.flags), time.monotonic()
            self.call(name, words)
            seconds = round(time.monotonic() - begin, 1)
            record = {"command": shlex.join(words), "commit": self.commit, "seconds": seconds}
            facts.write_text(json.dumps(record), encoding="utf-8")
        export = self.out / "exports" / name
        shutil.rmtree(export, ignore_errors=True)
        words = ["quintet", "export", f"runs/{name}", f"exports/{name}", "--dtype", "fp16"]
        self.call(name, words)
        return self.tar(name, {"model": export, "facts.json": facts}, run)

    def call(self, name: str, words: list[str]) -> None:
        print(shlex.join(words), flush=True)
        with (self.out / f"{name}.log").open("a", encoding="utf-8") as log:
            ended = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=self.out,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if ended.returncode:
            raise SystemExit(f"{name} failed; see {self.out / f'{name}.log'}")

    def tar(self, name: str, files: dict[str, Path], run: Path) -> Path:
        files |= {each: run / each for each in ("config.json", "metrics.jsonl", "events.jsonl")}
        path = self.out / f"{name}.tar"
        with tarfile.open(path, "w") as tar:
            for member, file in files.items():
                tar.add(file, member)
        if path.stat().st_size > MAX_TAR_BYTES:
            raise SystemExit(f"{path} has {path.stat().st_size} bytes; at most {MAX_TAR_BYTES}")
        return path


def with_stages(asked: list[str]) -> list[str]:
    """Those that are asked for, by default all, and what they need; dependencies come first."""
    if unknown := set(asked) - set(MODELS):
        raise SystemExit(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    names = {MODELS[name].needs for name in asked} | {*(asked or MODELS)}
    return [name for name in MODELS if name in names]


def train(options: argparse.Namespace) -> int:
    names = with_stages(options.names)
    out = options.out.resolve()
    (out / "runs").mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    training = Training(out, options.commit, options.flags, environment)
    jobs: dict[str, Future[Path]] = {}
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for name in names:
            jobs[name] = pool.submit(training.run, name, jobs.get(MODELS[name].needs))
        for name, job in jobs.items():
            try:
                print(f"{name}: {job.result()} ({job.result().stat().st_size} bytes)", flush=True)
            except SystemExit as error:
                failed += 1
                print(f"{name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


# -- packing ------------------------------------------------------------------------------------


def pack(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        sources = {name: Path(place) / name for name in with_stages(options.names)}
        for name, source in sources.items():
            with tarfile.open(options.folder / f"{name}.tar") as tar:
                tar.extractall(source, filter="data")
        for name, source in sources.items():
            copy_export(source / "model", place_of(name))
            if stage := MODELS[name].needs:
                check_stage(source / "model", sources[stage] / "model", stage)
        for name, source in sources.items():
            write_json(place_of(name) / ready.CARD, card_of(name, source))
    total = sum(file.stat().st_size for file in ready.FOLDER.rglob("*") if file.is_file())
    print(f"{total / 1e6:.1f} MB in {ready.FOLDER}")
    return int(total > MAX_BYTES)


def place_of(name: str) -> Path:
    return ready.FOLDER / name.replace("-", "/")


def copy_export(export: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(export / name, folder / name)


def check_stage(generator: Path, stage: Path, name: str) -> None:
    """One copy is packed for both: a generator must have learned from this very stage."""
    copy = generator / name.partition("-")[2] / FILES[1]
    if digest_of(copy) != digest_of(stage / FILES[1]):
        raise SystemExit(f"{generator} was trained with another {name} than that of {stage}")


def card_of(name: str, source: Path) -> dict[str, Any]:
    model, folder = MODELS[name], place_of(name)
    about = json.loads((source / "config.json").read_text(encoding="utf-8"))
    facts = json.loads((source / "facts.json").read_text(encoding="utf-8"))
    recipe = rooms.recipe_of(RunFolder.open(folder).about, folder)
    words = ["sample", f"ready/{name}", *rooms.family_of(recipe).sample.example(recipe, folder)]
    print(f"measuring {name}", flush=True)
    return {
        "recipe": model.recipe,
        **facts,
        "example": command(*(shlex.split(model.example) or words)),
        "data": {"builtin": True, **about["data"]},
        **machine(source),
        "bytes": sum((folder / file).stat().st_size for file in FILES),
        "metrics": metrics_of(folder),
        "quick": {"settings": model.quick, "metrics": metrics_of(folder, model.quick)},
    }


def metrics_of(folder: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """As `quintet evaluate` prints them for an export."""
    from quintet.engine.evaluate import evaluate_run
    from quintet.engine.machine.world import World

    recipe = rooms.recipe_of(RunFolder.open(folder).about, folder)
    fixed = {"device": "cpu", "compile": "off", "workers": 0}
    recipe = updated(recipe, {**fixed, **(changes or {})})
    return evaluate_run(rooms.build(recipe), recipe, folder, World(recipe), whole=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train")
    training.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    training.add_argument("--jobs", type=int, default=4, help="runs at a time")
    training.add_argument("--flags", default="", help="further flags of all runs, for a try")
    training.add_argument("--commit", default=commit(), help="of a copy without git's history")
    training.set_defaults(call=train)
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path, metavar="DIR", help="what train left")
    packing.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    packing.set_defaults(call=pack)
    options = parser.parse_args()
    sys.exit(options.call(options))


if __name__ == "__main__":
    main()

"""How long the device waits for data when recipes train on folders of files.

    python benchmarks/feeding.py [RECIPE …] [--data FOLDER] [--seconds 8]
    python benchmarks/feeding.py --tiny --workers 1
    python benchmarks/feeding.py mesh/autoencoder --core --profile

Every recipe that needs no model from outside is trained by its own workers on real files:
FOLDER/images, meshes, video, speech and music, each with a metadata.jsonl (benchmarks/realdata), of
which as many links are made as the recipe needs. Media that FOLDER does not hold are generated and
written as files of usual sizes. The first steps, which choose kernels and compile, do not count.
One JSON line for each recipe: the share of the time spent waiting in the first epoch, in which
files are decoded, and later. The exit status is 1 if it is above a tenth; for the first epoch, if
the cores of the workers were idle meanwhile. With --core, milliseconds of one core for a sample.
"""

import argparse
import cProfile
import json
import os
import pstats
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image
from steps import stage_of

from quintet import rooms
from quintet.engine.building import stream
from quintet.engine.config import Recipe
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder
from quintet.engine.settings import each_setting
from quintet.media.clips.writer import write_mp4
from quintet.media.meshes.files import write_mesh
from quintet.mesh.solids import Torus, part_mesh
from quintet.music import tunes
from quintet.speech import voices

MEDIA = {"image": "images", "mesh": "meshes"}
"""Folders that are not named like their rooms."""
OUTSIDE = ("/adopt", "/clip", "/clap")
"""Families whose model is downloaded."""
WARM = 24
"""Steps that do not count: captured after a few, compiled after the 20th."""
MOST = 0.1
BUSY = 0.8
"""Share of the workers' cores above which they can make no more."""
Row = tuple[str, str]


# -- files ----------------------------------------------------------------------------------------


def write_images(folder: Path, draw: np.random.Generator) -> Iterator[Row]:
    """JPEGs of 640 x 480 pixels, 90 kB."""
    for number in range(64):
        coarse = draw.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
        grainy = np.asarray(smooth) + draw.normal(0, 4, (480, 640, 3))
        picture = Image.fromarray(grainy.clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number}.jpg", quality=90)
        yield f"{number}.jpg", f"pattern {number}"


def write_meshes(folder: Path, draw: np.random.Generator) -> Iterator[Row]:
    """Rings of 100 to 3,000 faces."""
    for number in range(64):
        around, across = (int(count) for count in draw.integers(7, 39, 2))
        points, faces = part_mesh(Torus(around, across, 0.6, 0.2, 0.3))
        write_mesh(folder / f"{number}.ply", points, faces)
        yield f"{number}.ply", f"a ring of {len(faces)} faces"


def write_video(folder: Path, draw: np.random.Generator) -> Iterator[Row]:
    """Clips of 384 x 288 pixels and three seconds."""
    for number in range(24):
        coarse = draw.integers(0, 256, (12, 32, 3), dtype=np.uint8)
        wide = np.asarray(Image.fromarray(coarse).resize((768, 288), Image.Resampling.BICUBIC))
        frames = np.stack([wide[:, 5 * t : 5 * t + 384] for t in range(72)])
        write_mp4(folder / f"{number}.mp4", frames, 24)
        yield f"{number}.mp4", f"pattern {number} moves"


def write_speech(folder: Path, _: np.random.Generator) -> Iterator[Row]:
    """Utterances of two to four seconds."""
    for number in range(96):
        utterance = voices.compose(number, 0)
        _write_sound(folder / f"{number}.ogg", voices.speak(utterance, 16_000), 16_000)
        yield f"{number}.ogg", utterance.text


def write_music(folder: Path, _: np.random.Generator) -> Iterator[Row]:
    """Pieces of twenty seconds."""
    for number in range(24):
        tune = tunes.compose(number, 0)
        _write_sound(folder / f"{number}.ogg", tunes.play(tune, 20.0, 32_000), 32_000)
        yield f"{number}.ogg", tune.captions[0]


def _write_sound(path: Path, sound: Any, rate: int) -> None:
    import soundfile

    soundfile.write(path, sound, rate)


WRITERS: dict[str, Callable[[Path, np.random.Generator], Iterator[Row]]] = {
    "images": write_images,
    "meshes": write_meshes,
    "video": write_video,
    "speech": write_speech,
    "music": write_music,
}


def source_of(kind: str, data: Path | None, place: Path) -> tuple[Path, list[Row]]:
    """The folder of real files, or one of generated files, and their captions."""
    for folder in (data / kind / "train", data / kind) if data else ():
        if (folder / "metadata.jsonl").is_file():
            lines = (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
            return folder, [(row["file_name"], row.get("text") or "unknown") for row in rows]
    folder = place / f"generated-{kind}"
    if not folder.exists():
        folder.mkdir()
        rows = list(WRITERS[kind](folder, np.random.default_rng(0)))
        (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder, [tuple(row) for row in json.loads((folder / "rows.json").read_text())]


def grown(source: Path, rows: list[Row], count: int, folder: Path) -> Path:
    """A folder of at least `count` files: links to the same ones are decoded by themselves."""
    folder.mkdir()
    lines = []
    for number, (name, text) in enumerate(islice(cycle(rows), max(count, len(rows)))):
        copy = f"{number:05d}{Path(name).suffix}"
        try:
            os.link(source / name, folder / copy)
        except OSError:  # on another disk
            shutil.copyfile(source / name, folder / copy)
        lines.append(json.dumps({"file_name": copy, "text": text}))
    (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


# -- measurements ---------------------------------------------------------------------------------


def recipe_of(name: str, asked: argparse.Namespace, place: Path) -> tuple[Recipe, str]:
    """The recipe on a folder of its medium, and where its files are from."""
    recipe = rooms.recipe_function(name)()
    # Links to held-out files would be left out as their copies.
    changes = {"valid_limit": 8, "too_large": "simplify", "exclude_held_out": False}
    recipe = each_setting(recipe, lambda f, value: changes.get(f.name, value))
    if asked.core:
        recipe = replace(recipe, batch_size=min(32, recipe.batch_size), workers=0)
    if asked.workers is not None and not asked.core:
        recipe = replace(recipe, workers=asked.workers)
    room = name.partition("/")[0]
    kind = MEDIA.get(room, room)
    source, rows = source_of(kind, asked.data, place)
    files = asked.count if asked.core else max(asked.files, 3 * recipe.batch_size)
    Random(0).shuffle(rows)
    rows = rows[:files] if asked.core else rows
    folder = grown(source, rows, files, place / f"{name.replace('/', '-')}-files")
    stages = {stage: str(stage_of(f"{of}_tiny", place)) for stage, of in recipe.stages.items()}
    recipe = replace(recipe, data=str(folder), trackers=(), device=asked.device, **stages)
    if asked.compile:
        recipe = replace(recipe, compile=asked.compile)
    return recipe, "real" if asked.data and source.is_relative_to(asked.data) else "generated"


class Clock:
    """Share of the time spent waiting, and of the workers' cores that were busy."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._sync()
        self.begun, self.waited, self.position = time.perf_counter(), run.stream.waited, self._at()
        self.steps, self.busy = run.step, self._worker_seconds()

    def read(self) -> dict[str, float]:
        self._sync()
        seconds = time.perf_counter() - self.begun
        cores = min(len(self._workers()), len(os.sched_getaffinity(0))) or 1
        return {
            "waiting": round((self.run.stream.waited - self.waited) / seconds, 3),
            "steps": self.run.step - self.steps,
            "samples_per_second": round((self._at() - self.position) / seconds, 1),
            "workers_busy": round((self._worker_seconds() - self.busy) / seconds / cores, 2),
        }

    def _sync(self) -> None:
        if self.run.world.device.type == "cuda":
            torch.cuda.synchronize()

    def _at(self) -> int:
        return self.run.stream.position

    def _workers(self) -> list[Any]:
        return self.run.stream._batches._workers if self.run.stream._batches else []

    def _worker_seconds(self) -> float:
        ticks = 0
        for worker in self._workers():
            with suppress(OSError):
                fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def trained(recipe: Recipe, place: Path, seconds: float, warm: int) -> dict[str, Any]:
    begun = time.perf_counter()
    folder = RunFolder.create(place, {"settings": {}})
    if recipe.stages:
        frozen.keep(folder, recipe, {}, rooms.load)
        recipe = frozen.resolved(recipe, folder.path)
    run = Run(rooms.build(recipe), recipe, World(recipe), folder)
    try:
        for _ in range(warm):
            take_step(run)
        row = {"start_s": round(time.perf_counter() - begun, 1)}
        row["first_epoch"] = phase(run, 4 * seconds, lambda: run.stream.epoch < 1)
        row["later"] = phase(run, seconds, lambda: True)
        return row | {"files": run.stream.samples.size, "later_is_first": run.stream.epoch < 1}
    finally:
        run.close()


def phase(run: Run, seconds: float, goes_on: Callable[[], bool]) -> dict[str, float] | None:
    """Steps for so long; None without any."""
    clock, end = Clock(run), time.perf_counter() + seconds
    while goes_on() and time.perf_counter() < end:
        take_step(run)
    return clock.read() if run.step > clock.steps else None


def too_long(row: dict[str, Any]) -> list[str]:
    faults = []
    for name in ("first_epoch", "later"):
        part = row.get(name)
        if part is None or part["waiting"] <= MOST:
            continue
        decoding = name == "first_epoch" or row["later_is_first"]
        if not (decoding and part["workers_busy"] >= BUSY):
            faults.append(f"{name}: waits {part['waiting']:.1%} of the time")
    return faults


def one_core(recipe: Recipe, profile: bool) -> dict[str, Any]:
    """Milliseconds of processor time per sample, decoded for the first time and again."""
    task = rooms.build(recipe)
    alone = stream(task, recipe, World(recipe))
    row: dict[str, Any] = {"files": alone.samples.size}
    for name in ("first_epoch_ms", "", "later_ms"):  # batches by length reach into the next epoch
        profiler = cProfile.Profile()
        begun, first = time.process_time(), alone.position
        if profile:
            profiler.enable()
        while alone.position - first < alone.samples.size:
            alone.take(1)
        profiler.disable()
        if name:
            ms = (time.process_time() - begun) / (alone.position - first) * 1e3
            row[name] = round(ms, 3)
        if name and profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
    return row


def main() -> None:
    usual = [
        name
        for name in rooms.names()
        if not any(word in name for word in (*OUTSIDE, "_tiny", "_large"))
    ]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", nargs="*", default=usual)
    parser.add_argument("--data", type=Path, help="folder of images, meshes, video, speech, music")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, help="default: those of the recipe")
    parser.add_argument("--files", type=int, default=1500, help="at least")
    parser.add_argument("--seconds", type=float, default=8.0, help="of later epochs")
    parser.add_argument("--compile", choices=("auto", "on", "off"), help="default: the recipe's")
    parser.add_argument("--tiny", action="store_true", help="the twins for a CPU, a few files")
    parser.add_argument("--core", action="store_true", help="one core, without training")
    parser.add_argument("--count", type=int, default=256, help="files of --core")
    parser.add_argument("--profile", action="store_true", help="with --core")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.tiny:
        asked.files, asked.seconds = 48, 2.0
        known = rooms.names()
        asked.recipes = [f"{name}_tiny" for name in asked.recipes if f"{name}_tiny" in known]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.recipes:
            if asked.core and rooms.recipe_function(name)().stages:
                continue  # its data are ids, computed once
            row: dict[str, Any] = {"recipe": name}
            try:
                recipe, origin = recipe_of(name, asked, Path(folder))
                row |= {"data": origin, "batch": recipe.batch_size, "workers": recipe.workers}
                if asked.core:
                    row |= one_core(recipe, asked.profile)
                else:
                    place = Path(folder) / f"{name.replace('/', '-')}-run"
                    row |= trained(recipe, place, asked.seconds, 2 if asked.tiny else WARM)
                    row["faults"] = too_long(row)
            except Exception as error:
                traceback.print_exc()
                row["faults"] = [repr(error)[:300]]
            failed = failed or bool(row.get("faults"))
            print(json.dumps(row), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Shards against loose files: samples per second, cold and warm; and opening a million samples.

    python benchmarks/shards.py [--images 3000] [--workers 0] [--samples 1000000]

The engine's stream reads an epoch of the same images from a folder and from shards, in the same
order, with alternating batches. For cold reads the files are dropped from the page cache. Then
an index of that many samples is opened in a separate process. Exits with 1 if shards are slower
than 0.9 times loose files, or if opening takes 2 seconds or 200 MB.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from quintet.engine.config import Recipe
from quintet.engine.data.plans import CountPlan, order_of
from quintet.engine.data.stream import Stream
from quintet.engine.machine.world import World
from quintet.image.config import ImageDataConfig
from quintet.image.data import ImageFolder, collate
from quintet.media.folder import files
from quintet.media.pixels import SUFFIXES
from quintet.media.shards.index import IndexBuilder, Sample
from quintet.media.shards.member import Header
from quintet.media.shards.pack import pack

BATCH = 32
LEAST = 0.9
SECONDS, MEGABYTES = 2.0, 200.0
CONFIG = ImageDataConfig(size=(64, 64))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where to put the files; a folder for temporary ones")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        print(json.dumps(opened(asked.open)))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        rows = [against_files(Path(place), asked), start_up(Path(place), asked.samples)]
    for row in rows:
        for name, value in row.items():
            print(f"{name:24} {value:,.4g}" if isinstance(value, float) else f"{name:24} {value}")
        print(json.dumps(row))
    sys.exit(0 if all(row["met"] for row in rows) else 1)


# -- the loader -----------------------------------------------------------------------------


def against_files(place: Path, asked: argparse.Namespace) -> dict[str, object]:
    loose, shards = place / "loose", place / "shards"
    draw(loose, asked.images)
    pack(loose, files(loose, SUFFIXES), shards, lambda name: {}, 64_000_000)
    rates: dict[str, list[float]] = {}
    for _ in range(asked.rounds):
        for folder in (loose, shards):
            forget(folder)
        for how in ("cold", "warm"):
            for name, value in race((loose, shards), asked.workers).items():
                rates.setdefault(f"{name}_{how}", []).append(value)
    found = {name: statistics.median(values) for name, values in rates.items()}
    shares = {how: found[f"shards_{how}"] / found[f"loose_{how}"] for how in ("cold", "warm")}
    return {
        "benchmark": "shards",
        "images": asked.images,
        "workers": asked.workers,
        "megabytes": sum(path.stat().st_size for path in shards.iterdir()) / 1e6,
        **{f"{name}_per_second": value for name, value in found.items()},
        **{f"share_{how}": share for how, share in shares.items()},
        "met": min(shares.values()) >= LEAST,
    }


def draw(folder: Path, count: int) -> None:
    """JPEGs of about 35 KB, as photographs shrunk for training are."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    for number in range(count):
        rough = chance.integers(0, 255, (64, 64, 3), np.uint8)
        image = Image.fromarray(rough).resize((320, 320), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:06d}.jpg", quality=90)


def forget(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def race(folders: Sequence[Path], workers: int) -> dict[str, float]:
    """Samples per second of each, batch by batch in turns, so that other work slows them alike."""
    streams = {folder.name: stream_of(folder, workers) for folder in folders}
    batches = min(stream.samples.size for stream in streams.values()) // BATCH
    seconds = dict.fromkeys(streams, 0.0)
    for _ in range(batches):
        for name, stream in streams.items():
            begin = time.perf_counter()
            stream.take(1)
            seconds[name] += time.perf_counter() - begin
    for stream in streams.values():
        stream.close()
    return {name: batches * BATCH / spent for name, spent in seconds.items()}


def stream_of(folder: Path, workers: int) -> Stream:
    source = ImageFolder(folder, CONFIG, "train", 0)
    recipe = Recipe(steps=1, batch_size=BATCH, workers=workers, device="cpu")
    plan = CountPlan(len(source), 0, BATCH, order_of(source, 0))
    return Stream(source, collate, plan, World(recipe), seed=0, accumulate=1, workers=workers)


# -- starting -------------------------------------------------------------------------------


def start_up(place: Path, samples: int) -> dict[str, object]:
    folder, each = place / "many", 1000
    folder.mkdir()
    for number in range(samples // each):
        builder, size = IndexBuilder(), each * 100_000
        for row in range(each):
            name = f"class-{number:04d}/{row:08d}.jpg"
            row_data = {"file_name": name, "text": "a photograph of something or other"}
            header = Header(width=512, height=512)
            builder.add(Sample(name, row * 100_000, 90_000, bytes(16), header, row_data))
        about = {"packing": "a", "count": samples // each, "number": number, "bytes": size}
        (folder / f"shard-{number:06d}.index").write_bytes(builder.content(about))
        with open(folder / f"shard-{number:06d}.tar", "wb") as tar:
            tar.truncate(size)  # nothing is in it: only its size is looked at
    command = [sys.executable, __file__, "--open", str(folder)]
    tries = [
        json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        for _ in range(5)
    ]
    seconds = min(found["seconds"] for found in tries)  # the machine may have other work
    megabytes = max(found["megabytes"] for found in tries)
    return {
        "benchmark": "shards_start",
        "samples": samples,
        "shards": samples // each,
        "seconds": seconds,
        "cpu_seconds": min(found["cpu_seconds"] for found in tries),
        "megabytes": megabytes,
        "met": seconds < SECONDS and megabytes < MEGABYTES,
    }


def opened(folder: str) -> dict[str, float]:
    """From the name of the folder to the names of the first global batch; memory above before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, spent = time.perf_counter(), time.process_time()
    source = ImageFolder(folder, CONFIG, "train", 0)
    plan = CountPlan(len(source), 0, BATCH, order_of(source, 0))
    for request in plan.micro_batches(0, 1)[0]:
        source.name(request.sample)
    seconds, spent = time.perf_counter() - begin, time.process_time() - spent
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "cpu_seconds": spent, "megabytes": (after - before) / 1e3}


if __name__ == "__main__":
    main()
